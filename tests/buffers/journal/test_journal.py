"""The journal: whatever happens to it, what was appended is found, or the loss is said."""

import errno
import os
import pickle
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_disk import filled, mounted

from asyncrl.buffers.journal.disk import DiskFull
from asyncrl.buffers.journal.frames import FORMAT
from asyncrl.buffers.journal.journal import Journal, JournalInUse
from asyncrl.buffers.journal.journal_files import JournalDamaged, JournalGone, head_of, read_journal
from asyncrl.core.files.file_formats import UnknownFormat

MARK = b"\xa7RL\x1e"
"""Begins every record of the format."""


def open_journal(folder, segment_bytes=1 << 20, fsync=False, wait_s=0.0, identity=b"run"):
    return Journal.open(folder, fsync=fsync, segment_bytes=segment_bytes, wait_s=wait_s, identity=identity)


def written(folder, records, **options):
    """A closed journal with ``records`` in it; bytes stand for themselves, a string is a snapshot."""
    journal, _ = open_journal(folder, **options)
    for record in records:
        journal.append(record) if isinstance(record, bytes) else journal.snapshot(record.encode())
    journal.close()
    return folder


def contents(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.name != "lock"}


operations = st.lists(
    st.one_of(
        st.binary(max_size=60),
        st.text(max_size=20),  # a snapshot
        st.none(),  # the process ends and another one goes on
    ),
    max_size=25,
)


@given(operations, st.integers(1, 300))
@settings(max_examples=60)
def test_a_recovery_is_the_last_snapshot_and_what_was_appended_since(tmp_path_factory, operations, segment_bytes):
    folder = tmp_path_factory.mktemp("journal")
    journal, _ = open_journal(folder, segment_bytes)
    snapshot, records = None, []
    for operation in operations:
        match operation:
            case bytes():
                journal.append(operation)
                records.append(operation)
            case str():
                journal.snapshot(operation.encode())
                snapshot, records = operation.encode(), []
            case None:
                journal.close()
                journal, found = open_journal(folder, segment_bytes)
                assert (found.snapshot, found.records, found.cut_bytes) == (snapshot, records, 0)
        found = read_journal(folder)
        assert (found.snapshot, found.records, found.damaged_snapshots) == (snapshot, records, ())
    journal.close()
    assert len(list(folder.glob("*.snapshot"))) <= 2


def test_segments_and_snapshots_that_no_recovery_needs_are_removed(tmp_path):
    written(tmp_path, [b"a" * 90, b"b" * 90, "one", b"c" * 90, b"d" * 90, "two", b"e" * 90, "three", b"f"], segment_bytes=100)
    assert list(contents(tmp_path)) == ["00000005.log", "00000005.snapshot", "00000006.log", "00000006.snapshot"]


def test_a_record_may_be_larger_than_a_segment(tmp_path):
    written(tmp_path, [b"a" * 1000, b"b", b"c" * 1000], segment_bytes=100)
    assert read_journal(tmp_path).records == [b"a" * 1000, b"b", b"c" * 1000]


def test_what_it_is_the_journal_of_is_told_by_segments_and_snapshots(tmp_path):
    assert open_and_close(tmp_path / "none").identity is None
    assert read_journal(written(tmp_path / "a", [b"x"], identity=b"A")).identity == b"A"
    assert read_journal(written(tmp_path / "b", [b"x", "s"], identity=b"B")).identity == b"B"


def open_and_close(folder, **options):
    journal, found = open_journal(folder, **options)
    journal.close()
    return found


# --- torn and damaged ends


@pytest.mark.parametrize("before", [[], [b"first"], [b"first", "snapshot"], [b"first", "snapshot", b"second"]])
def test_wherever_the_last_write_was_torn_all_before_it_is_found(tmp_path, before):
    whole = written(tmp_path / "whole", [*before, b"last" * 5])
    expected = read_journal(written(tmp_path / "expected", before))
    segment = sorted(whole.glob("*.log"))[-1].name
    old = tmp_path / "expected" / segment
    start = old.stat().st_size if old.exists() else 0
    end = (whole / segment).stat().st_size
    for cut in range(start, end):
        torn = tmp_path / f"torn-{cut}"
        shutil.copytree(whole, torn)
        os.truncate(torn / segment, cut)
        unchanged = contents(torn)
        seen = read_journal(torn)
        assert contents(torn) == unchanged, "reading changes nothing"
        journal, found = open_journal(torn)
        assert found == seen
        assert (found.snapshot, found.records) == (expected.snapshot, expected.records)
        assert found.cut_bytes == cut - start
        assert found.cut_segment == (segment if cut > start or cut == 0 else "")
        journal.append(b"goes on")
        journal.close()
        assert open_and_close(torn).records == [*expected.records, b"goes on"]
        assert read_journal(torn).cut_bytes == 0
        shutil.rmtree(torn)


@given(st.data())
def test_a_damaged_byte_is_cut_at_the_end_and_refused_elsewhere(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("journal")
    records = [b"%d" % n * 7 for n in range(6)]
    written(folder, records, segment_bytes=70)
    segments = sorted(folder.glob("*.log"))
    assert len(segments) > 2
    segment = data.draw(st.sampled_from(segments))
    damaged = bytearray(segment.read_bytes())
    last_record = damaged.rindex(MARK)
    at = data.draw(st.integers(0, len(damaged) - 1))
    damaged[at] ^= data.draw(st.integers(1, 255))
    segment.write_bytes(damaged)
    before = contents(folder)
    if segment == segments[-1] and at >= last_record:
        found = open_and_close(folder)
        assert found.records == records[:-1]
        assert found.cut_segment == segment.name
    else:
        with pytest.raises(JournalDamaged) as raised:
            open_and_close(folder)
        assert raised.value.file == segment
        assert raised.value.offset <= at
        assert contents(folder) == before, "what is refused is left as it is"
        with pytest.raises(JournalDamaged):
            read_journal(folder)


def test_damage_before_whole_records_names_file_offset_and_remedy(tmp_path):
    written(tmp_path, [b"a" * 50, b"b" * 50, b"c" * 50])
    segment = tmp_path / "00000001.log"
    damaged = bytearray(segment.read_bytes())
    damaged[damaged.index(b"b" * 50)] ^= 1
    segment.write_bytes(damaged)
    offset = damaged.index(b"b" * 49) - 1 - 12
    told = rf"00000001.log is damaged at offset {offset}: .*; restore .* a copy of .* \(truncate -s {offset} .*\), move all later"
    with pytest.raises(JournalDamaged, match=told):
        open_journal(tmp_path)
    os.truncate(segment, offset)
    assert open_and_close(tmp_path).records == [b"a" * 50], "the remedy keeps all that can be kept"


def test_a_run_of_zeros_is_no_record(tmp_path):
    written(tmp_path, [b"a"])
    with open(tmp_path / "00000001.log", "ab") as file:
        file.write(bytes(4096))
    found = open_and_close(tmp_path)
    assert (found.records, found.cut_bytes) == ([b"a"], 4096)


def test_a_segment_that_is_missing_or_was_cut_is_refused(tmp_path):
    records = [b"%d" % n * 50 for n in range(6)]
    one = written(tmp_path / "one", records, segment_bytes=90)
    (one / "00000003.log").unlink()
    with pytest.raises(JournalDamaged, match=r"00000003.log is damaged at offset 0: the file is not there, but later ones are"):
        open_journal(one)
    two = written(tmp_path / "two", [b"x", b"y", "snapshot", b"z"])
    (two / "00000001.log").unlink()
    assert open_and_close(two).records == [b"z"], "the snapshot does without"
    (two / "00000002.snapshot").unlink()
    with pytest.raises(JournalDamaged, match=r"00000001.log"):
        open_journal(two)
    three = written(tmp_path / "three", records, segment_bytes=200)
    first = three / "00000001.log"
    os.truncate(first, first.read_bytes().rindex(MARK))
    with pytest.raises(JournalDamaged, match=r"00000002.log .* begins with record \d+, but record \d+ is next"):
        open_journal(three)


def test_a_journal_of_another_format_is_refused(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr("asyncrl.buffers.journal.frames.FORMAT", 9)
        written(tmp_path, [b"a"])
    with pytest.raises(
        UnknownFormat, match=rf"00000001.log has format 9, and this .* reads format {FORMAT}; resume it with the asyncrl that"
    ):
        open_journal(tmp_path)


# --- files that are gone: a journal that was begun is never taken for one that was not


def everything(folder):
    """The journal's files, and its head beside them."""
    return contents(folder), head_of(folder).read_bytes()


def put_away(folder, *names):
    """Move files of the journal, or all of them, out of it; returns what moves them back."""
    aside = folder.with_name("aside")
    aside.mkdir(exist_ok=True)
    names = names or tuple(path.name for path in folder.iterdir() if path.name != "lock")
    for name in names:
        (folder / name).rename(aside / name)

    def put_back():
        for name in names:
            (aside / name).rename(folder / name)

    return put_back


def refused(folder, error, told):
    """Opening and reading the journal raise ``error``, and change nothing."""
    before = contents(folder) if folder.is_dir() else None
    for attempt in (open_journal, read_journal):
        with pytest.raises(error, match=told):
            attempt(folder)
    assert (contents(folder) if folder.is_dir() else None) == before


RECORDS = [b"%d" % n * 50 for n in range(6)]


def test_a_journal_whose_folder_is_gone_is_refused_and_no_folder_is_made_in_its_place(tmp_path):
    folder = written(tmp_path / "journal", RECORDS, segment_bytes=90)
    folder.rename(tmp_path / "elsewhere")
    refused(folder, JournalGone, r"journal is gone or holds nothing, although .*journal.head says .* segment 6; put it back")
    assert not folder.exists()
    (tmp_path / "elsewhere").rename(folder)
    assert open_and_close(folder).records == RECORDS


@pytest.mark.parametrize("what", [RECORDS[:1], [*RECORDS[:1], "one"], RECORDS], ids=["one record", "a snapshot", "many"])
def test_a_journal_whose_files_are_all_gone_is_refused(tmp_path, what):
    folder = written(tmp_path / "journal", what, segment_bytes=90)
    expected = read_journal(folder)
    put_back = put_away(folder)
    refused(folder, JournalGone, r"although \S+journal.head says that it had reached segment")
    put_back()
    assert open_and_close(folder) == expected


def test_the_newest_segments_are_missed_and_what_came_before_can_be_gone_on_with(tmp_path):
    folder = written(tmp_path / "journal", RECORDS, segment_bytes=90)
    put_back = put_away(folder, "00000005.log", "00000006.log")
    refused(folder, JournalDamaged, r"00000005.log .*: the file is not there, and journal.head says .* segment 6; restore")
    put_back()
    assert open_and_close(folder).records == RECORDS
    put_away(folder, "00000005.log", "00000006.log")
    refused(folder, JournalDamaged, r"or, to give up what was recorded there and since, move \S+journal.head away and try again")
    head_of(folder).rename(tmp_path / "head")
    journal, found = open_journal(folder, segment_bytes=90)
    assert found.records == RECORDS[:4]
    journal.append(b"goes on")
    journal.close()
    assert open_and_close(folder).records == [*RECORDS[:4], b"goes on"]


def test_a_segment_that_came_after_the_newest_snapshot_is_missed(tmp_path):
    folder = written(tmp_path / "journal", [b"a", "one", b"b"])
    put_back = put_away(folder, "00000002.log")
    refused(folder, JournalDamaged, r"00000002.log .*: the file is not there, and journal.head says")
    put_back()
    assert open_and_close(folder).records == [b"b"]


def test_a_segment_in_the_middle_is_missed_and_what_came_before_can_be_gone_on_with(tmp_path):
    folder = written(tmp_path / "journal", RECORDS, segment_bytes=90)
    put_back = put_away(folder, "00000003.log")
    refused(
        folder, JournalDamaged, r"00000003.log .*: .* later ones are; restore .* move it and all later files of \S+journal away"
    )
    put_back()
    assert open_and_close(folder).records == RECORDS
    put_away(folder, *(f"{number:08d}.log" for number in (3, 4, 5, 6)))
    head_of(folder).rename(tmp_path / "head")
    assert open_and_close(folder).records == RECORDS[:2]


@pytest.mark.parametrize("what", [["one", b"b"], ["one", b"b", "two", b"c"], ["one", b"b", "two"]], ids=str)
def test_the_newest_snapshot_is_missed_and_not_needed(tmp_path, what):
    folder = written(tmp_path / "journal", [b"a", *what])
    newest = sorted(folder.glob("*.snapshot"))[-1].name
    put_away(folder, newest)
    seen = read_journal(folder)
    assert (seen.snapshot, seen.records) == (
        (None, [b"a", b"b"]) if what.count("two") == 0 else (b"one", [b"b", b"c"][: len(what) - 2])
    )
    assert seen.missing_snapshot == newest
    journal, found = open_journal(folder)
    assert found == seen
    journal.append(b"goes on")
    journal.close()
    found = open_and_close(folder)
    assert (found.snapshot, found.records, found.missing_snapshot) == (seen.snapshot, [*seen.records, b"goes on"], "")


def test_a_snapshot_that_is_put_back_when_the_journal_has_gone_on_without_it_is_not_used(tmp_path):
    folder = written(tmp_path / "journal", [b"a", "one", b"b", "two"])
    put_back = put_away(folder, "00000003.snapshot")
    journal, _ = open_journal(folder)
    journal.append(b"c")
    journal.close()
    put_back()
    found = open_and_close(folder)
    assert (found.snapshot, found.records, found.damaged_snapshots) == (b"one", [b"b", b"c"], ("00000003.snapshot",))


def test_without_a_snapshot_and_the_beginning_it_says_that_either_would_do(tmp_path):
    folder = written(tmp_path / "journal", [b"a", "one", b"b", "two", b"c"])
    put_back = put_away(folder, "00000002.snapshot", "00000003.snapshot")
    told = r"00000001.log .* cannot be read without it or a snapshot of \S+journal from a backup; restore the file from a backup$"
    refused(folder, JournalDamaged, told)
    put_back()
    assert open_and_close(folder).records == [b"c"]


def test_a_head_that_cannot_be_read_says_nothing(tmp_path, caplog):
    folder = written(tmp_path / "journal", RECORDS[:2])
    for damaged in (b"", b"\xff\xfe", b"1 2 3", b"one two"):
        head_of(folder).write_bytes(damaged)
        assert read_journal(folder).records == RECORDS[:2]
        assert "journal.head cannot be read" in caplog.text
        caplog.clear()


def test_opening_changes_nothing_before_the_first_change(tmp_path):
    folder = written(tmp_path / "journal", [b"a", "one", b"b", "two", b"c"])
    with open(folder / "00000003.log", "ab") as file:
        file.write(b"torn")
    (folder / "00000003.snapshot").write_bytes(b"nonsense")
    (folder / "00000004.snapshot.making").write_bytes(b"half")
    before = everything(folder)
    for _ in range(2):
        journal, found = open_journal(folder)
        assert (found.snapshot, found.records, found.cut_bytes) == (b"one", [b"b", b"c"], 4)
        journal.close()
        assert everything(folder) == before
    journal, _ = open_journal(folder)
    journal.append(b"d")
    journal.close()
    assert sorted(contents(folder)) == ["00000002.log", "00000002.snapshot", "00000003.damaged", "00000003.log"]
    assert read_journal(folder).records == [b"b", b"c", b"d"]


# --- snapshots


@pytest.mark.parametrize("damage", ["cut", "flip", "empty"])
def test_a_damaged_snapshot_falls_back_to_the_one_before(tmp_path, damage):
    written(tmp_path, [b"a", "one", b"b", b"c", "two", b"d"])
    newest = tmp_path / "00000003.snapshot"
    whole = newest.read_bytes()
    newest.write_bytes({"cut": whole[:-1], "flip": whole[:-1] + b"!", "empty": b""}[damage])
    seen = read_journal(tmp_path)
    assert (seen.snapshot, seen.records, seen.damaged_snapshots) == (b"one", [b"b", b"c", b"d"], ("00000003.snapshot",))
    journal, found = open_journal(tmp_path)
    assert found == seen
    journal.append(b"e")
    assert read_journal(tmp_path).records == [b"b", b"c", b"d", b"e"]
    assert (tmp_path / "00000003.damaged").exists(), "kept for whoever wants to know why"
    journal.snapshot(b"three")
    journal.snapshot(b"four")
    journal.append(b"f")
    journal.close()
    assert (read_journal(tmp_path).snapshot, read_journal(tmp_path).records) == (b"four", [b"f"])


def test_without_any_whole_snapshot_the_beginning_must_be_there(tmp_path):
    one = written(tmp_path / "one", [b"a", "one", b"b"])
    (one / "00000002.snapshot").write_bytes(b"nonsense")
    assert (read_journal(one).snapshot, read_journal(one).records) == (None, [b"a", b"b"])
    two = written(tmp_path / "two", [b"a", "one", b"b", "two", b"c", "three"])
    for path in two.glob("*.snapshot"):
        path.write_bytes(b"nonsense")
    with pytest.raises(JournalDamaged, match=r"00000001.log"):
        open_journal(two)


@pytest.mark.parametrize(("number", "raised"), [(errno.EIO, OSError), (errno.ENOSPC, DiskFull)])
def test_a_snapshot_that_the_disk_refused_is_tried_again(tmp_path, monkeypatch, number, raised):
    journal, _ = open_journal(tmp_path)
    journal.append(b"a")

    def refuse(path, target):
        raise OSError(number, os.strerror(number), str(target))

    with monkeypatch.context() as broken:
        broken.setattr(Path, "replace", refuse)
        with pytest.raises(raised):
            journal.snapshot(b"state")
    assert not list(tmp_path.glob("*.making"))
    journal.snapshot(b"state")
    journal.append(b"b")
    journal.close()
    _, found = open_journal(tmp_path)
    assert (found.snapshot, found.records) == (b"state", [b"b"])


def test_a_snapshot_that_was_being_made_is_forgotten(tmp_path):
    written(tmp_path, [b"a"])
    (tmp_path / "00000002.snapshot.making").write_bytes(b"half")
    journal, found = open_journal(tmp_path)
    assert (found.snapshot, found.records) == (None, [b"a"])
    journal.snapshot(b"state")
    journal.close()
    assert list(contents(tmp_path)) == ["00000001.log", "00000002.snapshot"]


# --- one writer, many readers

HOLDER = (
    "import sys, time; from pathlib import Path; from asyncrl.buffers.journal.journal import Journal;"
    "journal, _ = Journal.open(Path(sys.argv[1]), fsync=False, segment_bytes=100); journal.append(b'held');"
    "print('open', flush=True); time.sleep(float(sys.argv[2])); "
)


def holder(folder, seconds):
    child = subprocess.Popen([sys.executable, "-c", HOLDER, str(folder), str(seconds)], stdout=subprocess.PIPE)
    assert child.stdout.readline() == b"open\n"
    return child


def test_a_second_writer_is_refused_and_told_who_holds_it_and_a_killed_one_is_waited_for(tmp_path):
    child = holder(tmp_path, 60)
    try:
        start = time.monotonic()
        with pytest.raises(
            JournalInUse, match=rf"still being written by process {child.pid} after 0.2 s; .* end that process"
        ) as raised:
            open_journal(tmp_path, wait_s=0.2)
        assert time.monotonic() - start >= 0.2
        assert pickle.loads(pickle.dumps(raised.value)).holder == str(child.pid)
    finally:
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
    assert open_and_close(tmp_path).records == [b"held"]
    child = holder(tmp_path, 0.5)
    journal, found = open_journal(tmp_path, wait_s=20)
    assert found.records == [b"held", b"held"]
    child.wait()
    with pytest.raises(JournalInUse, match=f"process {os.getpid()}"):
        open_journal(tmp_path)
    journal.close()


WRITER = """
import sys
from pathlib import Path
from asyncrl.buffers.journal.journal import Journal
journal, _ = Journal.open(Path(sys.argv[1]), fsync=False, segment_bytes=2000)
print("open", flush=True)
for number in range(100_000_000):
    journal.append(b"%d" % number)
    if number % 300 == 299:
        journal.snapshot(b"%d" % (number + 1))
"""


def test_a_reader_does_not_mind_a_writer(tmp_path):
    child = subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE)
    try:
        assert child.stdout.readline() == b"open\n"
        seen = []
        while len(seen) < 150 or seen[-1] <= seen[0] + 600:  # through some snapshots, however slow the disk
            found = read_journal(tmp_path)
            first = int(found.snapshot or 0)
            assert [int(record) for record in found.records] == list(range(first, first + len(found.records)))
            seen.append(first + len(found.records))
    finally:
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
    assert seen == sorted(seen)
    assert read_journal(tmp_path).damaged_snapshots == ()


def test_reading_what_is_no_journal(tmp_path):
    with pytest.raises(FileNotFoundError, match="nothing-here is not a journal"):
        read_journal(tmp_path / "nothing-here")


# --- the disk


def test_records_that_shall_survive_a_power_cut_wait_for_the_disk(tmp_path, monkeypatch):
    synced = []
    real = os.fdatasync
    monkeypatch.setattr(os, "fdatasync", lambda file: synced.append(os.fstat(file).st_size) or real(file))
    journal, _ = open_journal(tmp_path / "always", fsync=True)
    journal.append(b"abc")
    journal.append(b"defg")
    assert len(synced) == 2
    assert synced[1] == synced[0] + 12 + 4
    journal.close()
    journal, _ = open_journal(tmp_path / "never")
    journal.append(b"abc")
    assert len(synced) == 2
    journal.snapshot(b"state")
    assert len(synced) == 3, "what replaces records that are removed is always on the disk first"
    journal.close()


def test_how_far_a_journal_has_come_survives_a_power_cut_if_its_records_do(tmp_path, monkeypatch):
    synced = []
    real = os.fsync
    monkeypatch.setattr(os, "fsync", lambda file: synced.append(Path(os.readlink(f"/proc/self/fd/{file}"))) or real(file))
    folder = tmp_path / "always" / "journal"
    written(folder, [b"abc"], fsync=True)
    assert synced[-2:] == [head_of(folder), folder.parent]
    synced.clear()
    written(tmp_path / "never" / "journal", [b"abc"])
    assert synced == []


@pytest.mark.parametrize("begun", [True, False], ids=["in a segment", "at the beginning of one"])
def test_a_full_disk_leaves_the_journal_as_it_was_and_it_goes_on(tmp_path, begun):
    with mounted(tmp_path / "small", "tmpfs", "size=1m") as disk:
        folder = disk / "journal"
        journal, _ = open_journal(folder, segment_bytes=1 << 20 if begun else 1)
        journal.append(b"a" * 10)
        before = contents(folder)
        with filled(disk, leave=8192):
            for _ in range(2):
                with pytest.raises(DiskFull, match="journal is full: 100,"):
                    journal.append(b"b" * 100_000)
                assert contents(folder) == before
                with pytest.raises(DiskFull, match="journal is full"):
                    journal.snapshot(b"s" * 100_000)
                assert contents(folder) == before
            journal.append(b"c")
        assert read_journal(folder).records == [b"a" * 10, b"c"]
        journal.append(b"b" * 100_000)
        journal.snapshot(b"s" * 100_000)
        journal.append(b"d")
        journal.close()
        found = open_and_close(folder)
        assert (found.snapshot, found.records, found.cut_bytes) == (b"s" * 100_000, [b"d"], 0)


def test_no_room_for_a_new_file_is_a_full_disk(tmp_path):
    with mounted(tmp_path / "small", "tmpfs", "size=1m,nr_inodes=6") as disk:
        journal, _ = open_journal(disk / "journal", segment_bytes=1)
        journal.append(b"a")
        (disk / "last").touch()
        for attempt in (lambda: journal.append(b"b"), lambda: journal.snapshot(b"s")):
            with pytest.raises(DiskFull):
                attempt()
        (disk / "last").unlink()
        journal.append(b"b")
        assert read_journal(disk / "journal").records == [b"a", b"b"]
        journal.close()


def test_nothing_can_be_appended_once_it_is_closed(tmp_path):
    journal, _ = open_journal(tmp_path)
    journal.append(b"a")
    journal.close()
    with pytest.raises(OSError, match="exists"):
        journal.append(b"b")
    assert read_journal(tmp_path).records == [b"a"]


def test_errors_travel_between_processes():
    damaged = JournalDamaged(Path("/x"), 5, "bad", "move it away")
    for error in (damaged, JournalGone(Path("/x"), "it is not new"), JournalInUse(Path("/x"), "12", 3.0)):
        assert str(pickle.loads(pickle.dumps(error))) == str(error)
