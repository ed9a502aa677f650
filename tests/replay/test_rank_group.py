"""The processes of a replay's ranks end badly, and the replay says how."""

import sys
from pathlib import Path

import pytest
from made_run import small_recipe

from asyncrl.core.errors import AsyncRLError, ComponentFailed, DeadlineExceeded
from asyncrl.replay import rank_group
from asyncrl.replay.job import Job


@pytest.mark.parametrize(
    ("ending", "error", "text"),
    [
        ("os.close(int(sys.argv[-2])); signal.pause()", DeadlineExceeded, "waited 0.2 s for the end of rank 0; .* is killed"),
        ("os._exit(3)", ComponentFailed, "rank 0 of the replay ended with code 3; the last lines of its log: about to end"),
    ],
)
def test_how_a_rank_has_ended_is_said(tmp_path: Path, monkeypatch, ending: str, error: type[AsyncRLError], text: str):
    program = tmp_path / "python"
    said = "import os, signal, sys; print('about to end', flush=True)"
    program.write_text(f"#!{sys.executable}\n{said}; {ending}\n")
    program.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(program))
    if error is DeadlineExceeded:
        monkeypatch.setattr(rank_group, "END_S", 0.2)
    job = Job(
        recipe=small_recipe(tmp_path, tmp_path),
        model_path=tmp_path,
        checkpoint=None,
        batches=(),
        first=1,
        payload={},
        threads=1,
        meeting=str(tmp_path / "meeting"),
        code=tmp_path,
        beside=tmp_path,
    )
    with pytest.raises(error, match=text):
        rank_group.run_ranks(job, tmp_path, lambda rank, answer: None)
