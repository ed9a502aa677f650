"""Copies of journals: whole by themselves, whatever the writer does meanwhile, and gone on with where no trajectory is."""

import os
import shutil

import pytest
from crash_run import stream
from made_buffers import buffer_of
from test_recovery import RECIPE, Life

from asyncrl.buffers.journal.journal_copy import copy_journal, give_up_payload
from asyncrl.buffers.journal.journal_files import read_journal
from asyncrl.buffers.journal.recovery import rebuild
from asyncrl.buffers.journal.unchangeable_keys import Identity


@pytest.mark.parametrize("steps", [1, 5])
def test_a_copied_journal_goes_on_alone_and_generates_again_what_was_not_copied(tmp_path, steps):
    life = Life(tmp_path / "here")
    for version in range(steps):
        life.step(version)
    life.commit(life.lease(4)[0])  # waits to be trained
    before = life.buffer.statistics().ledger
    copy_journal(tmp_path / "here" / "journal", tmp_path / "copy")
    for ticket in life.lease(3):
        life.commit(ticket)  # what comes after the copy is in no copy
    life.die()
    elsewhere = tmp_path / "elsewhere"
    shutil.copytree(tmp_path / "copy", elsewhere)
    buffer = buffer_of(RECIPE, stream())
    give_up_payload(elsewhere / "journal", RECIPE.buffer.journal, buffer, Identity.of(RECIPE, stream()), steps)
    again = Life(elsewhere)
    assert again.buffer.version == steps
    assert not list(again.buffer.groups.live_payload())
    assert again.report.lost_trajectories == 0
    after = again.buffer.statistics().ledger
    assert (after.issued, after.trained) == (before.issued, before.trained)
    assert after.committed == 0
    assert after.issued == after.trained + after.failed + after.filtered + after.expired
    again.buffer.batches.checkpointed(steps)  # nothing older is asked for
    again.step(steps)
    again.die()
    assert Life(elsewhere).buffer.version == steps + 1


def test_a_journal_is_copied_while_it_is_written_and_pruned(tmp_path, monkeypatch):
    life = Life(tmp_path / "here")
    life.journal._segment_bytes = 2000
    for version in range(4):
        life.step(version)
    link, pruned = os.link, []

    def prune_first(source, target):
        if not pruned:
            pruned.append(source)
            life.journal.snapshot(life.buffer.snapshot())
            life.journal.snapshot(life.buffer.snapshot())
        link(source, target)

    monkeypatch.setattr(os, "link", prune_first)
    copy_journal(tmp_path / "here" / "journal", tmp_path / "copy")
    assert pruned
    life.die()
    buffer, found = buffer_of(RECIPE, stream()), read_journal(tmp_path / "copy" / "journal")
    rebuild(buffer, Identity.of(RECIPE, stream()), tmp_path / "copy" / "journal", found)
    assert buffer.snapshot() == life.buffer.snapshot()
    assert not list(tmp_path.glob(".*"))
