"""Payload: what is written is read, damage is found, freed space is given back, a full disk loses nothing."""

import ctypes
import errno
import os
import pickle
import random
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_disk import filled, mounted

from asyncrl.buffers import payload_store as payload_module
from asyncrl.buffers.journal import disk
from asyncrl.buffers.journal.disk import PAGE, DiskFull
from asyncrl.buffers.payload_store import PayloadLost, PayloadReader, PayloadStore, PayloadWriter
from asyncrl.core.episode_records import PayloadRef

ROW = 18_500
"""Bytes of a trajectory of 2,048 tokens."""


def writer(folder, name="worker", segment_bytes=1 << 20, shard=0, fsync=False):
    return PayloadWriter(folder, shard, name, segment_bytes=segment_bytes, fsync=fsync)


def segments(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture(params=["disk", "memory"])
def folder(request, tmp_path):
    if request.param == "disk":
        yield tmp_path / "shard-0"
    else:
        with mounted(tmp_path / "memory", "tmpfs", "size=256m") as path:
            yield path / "shard-0"


def test_what_a_tool_does_to_the_umask_does_not_close_the_files(folder):
    appending = writer(folder)
    usual = os.umask(0o777)
    try:
        appending.append([b"abc"])
        assert os.umask(0o777) == 0o777
    finally:
        os.umask(usual)
    assert [path.stat().st_mode & 0o777 for path in (folder, *folder.iterdir())] == [0o777 & ~usual, 0o644 & ~usual]


@given(
    appends=st.lists(st.lists(st.binary(max_size=300), max_size=4), max_size=12),
    segment_bytes=st.integers(1, 1000),
    seed=st.integers(0, 99),
)
def test_what_is_written_is_read_in_any_order(tmp_path_factory, appends, segment_bytes, seed):
    folder = tmp_path_factory.mktemp("payload")
    appending, reading = writer(folder, segment_bytes=segment_bytes, shard=3), PayloadReader(folder)
    written = [pair for payloads in appends for pair in zip(payloads, appending.append(payloads), strict=True)]
    assert reading.read([ref for _, ref in written]) == [payload for payload, _ in written]
    random.Random(seed).shuffle(written)
    assert reading.read([ref for _, ref in written]) == [payload for payload, _ in written]
    assert {ref.shard for _, ref in written} <= {3}
    appending.close()
    reading.close()


def test_a_segment_ends_at_its_size_and_payloads_of_one_append_stay_together(tmp_path):
    appending = writer(tmp_path, segment_bytes=100)
    first, second = appending.append([b"a" * 40, b"b" * 40])
    (third,) = appending.append([b"c" * 40])
    (huge,) = appending.append([b"d" * 500])
    assert (first.offset, second.offset, third.offset, huge.offset) == (0, 40, 0, 0)
    assert first.segment == second.segment
    assert len({first.segment, third.segment, huge.segment}) == 3 == len(segments(tmp_path))


def test_an_append_is_one_system_call_and_neighbours_are_one_read(tmp_path, monkeypatch):
    calls = []
    for name in ("pwritev", "pread"):
        real = getattr(os, name)
        monkeypatch.setattr(os, name, lambda *a, name=name, real=real: calls.append(name) or real(*a))
    refs = writer(tmp_path).append([b"x" * n for n in range(1, 9)])
    assert calls == ["pwritev"]
    assert [len(payload) for payload in PayloadReader(tmp_path).read(refs)] == list(range(1, 9))
    assert calls == ["pwritev", "pread"]


def test_more_payloads_than_one_system_call_takes(tmp_path):
    payloads = [b"%d" % n for n in range(3000)]
    assert PayloadReader(tmp_path).read(writer(tmp_path).append(payloads)) == payloads


def test_a_call_that_writes_only_a_part_is_carried_on(tmp_path, monkeypatch):
    real = os.pwritev
    monkeypatch.setattr(os, "pwritev", lambda file, parts, offset: real(file, [bytes(parts[0])[:7]], offset))
    payloads = [random.Random(n).randbytes(n) for n in (0, 20, 7, 1, 33)]
    refs = writer(tmp_path).append(payloads)
    assert PayloadReader(tmp_path).read(refs) == payloads


def test_writers_of_one_name_do_not_share_a_segment(tmp_path):
    (a,), (b,) = writer(tmp_path).append([b"a"]), writer(tmp_path).append([b"b"])
    assert a.segment != b.segment
    assert PayloadReader(tmp_path).read([a, b]) == [b"a", b"b"]


def test_a_vanished_segment_is_named(tmp_path):
    (ref,) = writer(tmp_path).append([b"gone"])
    (tmp_path / ref.segment).unlink()
    with pytest.raises(
        PayloadLost, match=f"offset 0 of .*{ref.segment}: its segment is not there; bring the file back from a copy, or resume"
    ):
        PayloadReader(tmp_path).read([ref])


@pytest.mark.parametrize("together", [True, False], ids=["among neighbours", "alone"])
def test_damage_is_named_and_never_read(tmp_path, together):
    refs = writer(tmp_path).append([b"a" * 50, b"b" * 50, b"c" * 50])
    with open(tmp_path / refs[1].segment, "r+b") as file:
        file.seek(70)
        file.write(b"!")
    with pytest.raises(PayloadLost, match=r"offset 50 .* checksum") as raised:
        PayloadReader(tmp_path).read(refs if together else [refs[1]])
    assert raised.value.offset == 50
    assert PayloadReader(tmp_path).read([refs[0], refs[2]]) == [b"a" * 50, b"c" * 50]
    os.truncate(tmp_path / refs[1].segment, 120)
    with pytest.raises(PayloadLost, match="50 bytes should be there, 20 are"):
        PayloadReader(tmp_path).read([refs[2]])
    assert PayloadStore(tmp_path).verify(refs) == refs[1:]


def test_a_reader_keeps_few_segments_open(tmp_path):
    appending, reading = writer(tmp_path, segment_bytes=1), PayloadReader(tmp_path)
    refs = [ref for n in range(100) for ref in appending.append([b"%d" % n])]
    before = len(os.listdir("/proc/self/fd"))
    assert reading.read(refs) == [b"%d" % n for n in range(100)]
    assert len(os.listdir("/proc/self/fd")) - before <= 16
    reading.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_payload_that_shall_survive_a_power_cut_waits_for_the_disk(tmp_path, monkeypatch):
    synced = []
    real = os.fdatasync
    monkeypatch.setattr(os, "fdatasync", lambda file: synced.append(os.fstat(file).st_size) or real(file))
    writer(tmp_path, fsync=True).append([b"abc", b"de"])
    assert synced == [5], "once, when both are written"
    writer(tmp_path, fsync=False).append([b"abc"])
    assert len(synced) == 1


# --- space


@pytest.mark.parametrize("order", ["oldest first", "at random"])
def test_what_is_held_takes_little_more_than_its_bytes(folder, order):
    rng = random.Random(0)
    appending, store = writer(folder, segment_bytes=4 << 20), PayloadStore(folder)
    live, ratios = [], []
    for step in range(500):
        live += appending.append([rng.randbytes(rng.randint(ROW - 2000, ROW + 2000)) for _ in range(8)])
        while len(live) > 1000:
            store.free([live.pop(0 if order == "oldest first" else rng.randrange(len(live))) for _ in range(8)])
        if step > 200 and step % 20 == 0:
            ratios.append(store.bytes_on_disk() / sum(ref.size for ref in live))
    assert len(ratios) > 10
    assert max(ratios) <= (1.01 if order == "oldest first" else 1.2)
    assert store.verify(live) == [], "what is held was not touched"
    store.free(live)
    appending.close()
    store.free([])
    assert segments(folder) == []


def test_a_segment_stays_while_it_is_written_and_goes_when_its_writer_has_moved_on(tmp_path):
    appending, store = writer(tmp_path, segment_bytes=100), PayloadStore(tmp_path)
    refs = appending.append([b"a" * 60])
    store.free(refs)
    assert segments(tmp_path) == [refs[0].segment], "more may be appended to it"
    refs = appending.append([b"b" * 60])
    store.free([])
    assert segments(tmp_path) == [refs[0].segment]
    appending.close()
    assert segments(tmp_path) == [refs[0].segment], "it holds a row"
    store.free(refs)
    assert segments(tmp_path) == []


@pytest.mark.parametrize("moment", ["before its lock", "after its lock", "after its size"])
def test_what_is_appended_while_all_before_it_is_freed_stays(tmp_path, monkeypatch, moment):
    """The writer appends once more to its segment and leaves it, while another thread looks whether the segment can go."""
    appending, store = writer(tmp_path, segment_bytes=3 * ROW), PayloadStore(tmp_path)
    last = []

    def append() -> None:
        if not last:
            last.extend(appending.append([b"last" * 1000]))
            appending.append([bytes(3 * ROW)])  # in the next segment

    def calling(function, when):
        def called(*arguments):
            if when.startswith("before") and when == moment:
                append()
            found = function(*arguments)
            if when.startswith("after") and when == moment:
                append()
            return found

        return called

    first = appending.append([bytes(ROW)])
    locked = payload_module._is_written
    monkeypatch.setattr(payload_module, "_is_written", calling(calling(locked, "after its lock"), "before its lock"))
    monkeypatch.setattr(payload_module.os, "fstat", calling(os.fstat, "after its size"))
    store.free(first)
    monkeypatch.undo()
    assert last[0].segment == first[0].segment
    assert PayloadReader(tmp_path).read(last) == [b"last" * 1000]
    store.free(last)
    assert first[0].segment not in segments(tmp_path), "all of it is freed"


def test_a_segment_of_a_killed_writer_goes(tmp_path):
    program = (
        "import sys; from pathlib import Path; from asyncrl.buffers.payload_store import PayloadWriter; import msgspec, time;"
        "refs = PayloadWriter(Path(sys.argv[1]), 0, 'w', segment_bytes=1 << 20, fsync=False).append([b'abc']);"
        "print(msgspec.json.encode(refs).decode(), flush=True); time.sleep(60)"
    )

    child = subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE)
    try:
        refs = msgspec.json.decode(child.stdout.readline(), type=list[PayloadRef])
        store = PayloadStore(tmp_path)
        store.free(refs)
        assert len(segments(tmp_path)) == 1
    finally:
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
    store.free([])
    assert segments(tmp_path) == []


def test_freeing_twice_or_what_is_gone_is_harmless(tmp_path):
    appending, store = writer(tmp_path), PayloadStore(tmp_path)
    first, second = appending.append([b"a" * ROW, b"b" * ROW])
    store.free([first])
    store.free([first, first])
    assert PayloadReader(tmp_path).read([second]) == [b"b" * ROW]
    appending.close()
    store.free([second])
    assert segments(tmp_path) == []
    store.free([first, second])


def test_a_reader_that_keeps_a_removed_segment_open_does_not_keep_its_space(tmp_path):
    appending, store, reading = writer(tmp_path), PayloadStore(tmp_path), PayloadReader(tmp_path)
    refs = appending.append([b"a" * ROW])
    reading.read(refs)
    kept = os.open(tmp_path / refs[0].segment, os.O_RDONLY)
    appending.close()
    store.free(refs)
    assert os.fstat(kept).st_blocks == 0
    with pytest.raises(PayloadLost):
        reading.read(refs)
    os.close(kept)


def test_a_file_system_without_holes_gives_back_whole_segments(tmp_path):
    with mounted(tmp_path / "ram", "ramfs") as folder:
        appending, store = writer(folder, segment_bytes=3 * ROW), PayloadStore(folder)
        refs = [ref for n in range(6) for ref in appending.append([bytes([n]) * ROW])]
        assert len(segments(folder)) == 2
        store.free(refs[:2])
        assert PayloadReader(folder).read(refs[:1]) == [bytes([0]) * ROW], "the space could not be given back"
        store.free(refs[2:3])
        assert segments(folder) == [refs[3].segment]
        assert store.verify(refs[3:]) == []


def test_a_sweep_leaves_exactly_what_is_live(folder):
    rng = random.Random(1)
    appending = writer(folder, segment_bytes=10 * ROW)
    refs = [ref for n in range(50) for ref in appending.append([rng.randbytes(ROW)])]
    appending.close()
    live = [ref for ref in refs[10:] if rng.random() < 0.3]
    other = writer(folder, "still-writing")
    in_use = other.append([b"x"])
    store = PayloadStore(folder)
    before = store.bytes_on_disk()
    there = {name: (folder / name).read_bytes() for name in segments(folder)}
    unused = store.set_aside(live)
    assert {name: (folder / name).read_bytes() for name in segments(folder)} == there, "set aside, and not touched"
    assert store.bytes_on_disk() == before
    newcomer = writer(folder, "newcomer")
    unknown, given_up = newcomer.append([b"y"]), newcomer.append([b"z" * ROW])
    newcomer.close()
    trained = live[:2]
    store.free(trained + given_up)
    assert {name: (folder / name).read_bytes() for name in there} == there, "nothing that was there is touched before the sweep"
    assert store.verify(given_up) == (given_up if store._punches else []), "what is newer is freed as ever"
    store.sweep()
    assert store.verify(unknown) == [], "what came after it was set aside is not swept"
    store.free(unknown)
    live = [ref for ref in live if ref not in trained]
    assert unused + sum(ref.size for ref in trained) >= before - store.bytes_on_disk() > 0
    assert {ref.segment for ref in live} | {in_use[0].segment} == set(segments(folder))
    assert store.verify(live + in_use) == []
    assert store.bytes_on_disk() < 1.25 * sum(ref.size for ref in live) + 4096
    store.free(live)
    assert segments(folder) == [in_use[0].segment], "it knows what was unused, too"


def test_a_sweep_frees_what_was_only_locked_while_it_was_set_aside(tmp_path):
    """A process forked from the writer shares its lock, and may outlive it a little."""
    appending = writer(tmp_path)
    needed, unused = appending.append([b"a" * ROW, b"b" * ROW])
    leave, outlive = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(outlive)
        os.read(leave, 1)
        os._exit(0)
    appending.close()
    store = PayloadStore(tmp_path)
    assert store.set_aside([needed]) == 0
    store.free([needed])
    os.close(outlive)
    os.waitpid(child, 0)
    os.close(leave)
    assert segments(tmp_path) == [unused.segment]
    store.sweep()
    assert segments(tmp_path) == []


def test_a_sweep_leaves_what_is_still_being_written(tmp_path, caplog):
    appending = writer(tmp_path)
    (early,) = appending.append([b"a" * ROW])
    store = PayloadStore(tmp_path)
    store.set_aside([])
    (late,) = appending.append([b"b" * ROW])
    store.sweep()
    assert store.verify([early, late]) == []
    assert f"{early.segment} is still being written" in caplog.text


def test_threads_may_share_a_store_and_a_reader_and_a_writer(tmp_path):
    appending, store, reading = writer(tmp_path, segment_bytes=100_000), PayloadStore(tmp_path), PayloadReader(tmp_path)

    def work(seed):
        rng = random.Random(seed)
        mine = []
        for _ in range(150):
            payloads = [rng.randbytes(rng.randrange(1, 9000)) for _ in range(3)]
            mine += zip(payloads, appending.append(payloads), strict=True)
            rng.shuffle(mine)
            assert reading.read([ref for _, ref in mine[:5]]) == [payload for payload, _ in mine[:5]]
            store.free([mine.pop()[1]])
        return [ref for _, ref in mine]

    with ThreadPoolExecutor(4) as threads:
        kept = [ref for refs in threads.map(work, range(4)) for ref in refs]
    assert len(kept) == 4 * 300
    assert store.verify(kept) == []


# --- a full disk


def test_a_full_disk_loses_nothing_and_the_writer_goes_on(tmp_path):
    with mounted(tmp_path / "small", "tmpfs", "size=1m") as folder:
        appending = writer(folder / "shard-0")
        kept = [b"a" * 10_000]
        refs = appending.append(kept)
        segment = folder / "shard-0" / refs[0].segment
        with filled(folder, leave=16_384):
            for _ in range(3):
                with pytest.raises(
                    DiskFull, match=r"small/shard-0 is full: 100,000 bytes wanted, 1\d,\d{3} free; make room"
                ) as full:
                    appending.append([b"b" * 50_000, b"c" * 50_000])
                assert segment.stat().st_size == 10_000
                assert (full.value.wanted, full.value.folder) == (100_000, folder / "shard-0")
            refs += appending.append([b"d" * 2000])
            kept.append(b"d" * 2000)
        refs += appending.append([b"b" * 50_000, b"c" * 50_000])
        kept += [b"b" * 50_000, b"c" * 50_000]
        assert PayloadReader(folder / "shard-0").read(refs) == kept
        appending.close()


def test_no_room_for_a_new_segment_is_a_full_disk(tmp_path):
    with mounted(tmp_path / "small", "tmpfs", "size=1m,nr_inodes=4") as folder:
        appending = writer(folder / "shard-0", segment_bytes=10)
        refs = appending.append([b"a" * 10])
        (folder / "last").touch()
        with pytest.raises(DiskFull, match="is full"):
            appending.append([b"b" * 10])
        (folder / "last").unlink()
        refs += appending.append([b"b" * 10])
        assert PayloadReader(folder / "shard-0").read(refs) == [b"a" * 10, b"b" * 10]
        appending.close()


def test_errors_travel_between_processes():

    for error in (DiskFull(Path("/x"), 5, 3), PayloadLost(Path("/x/y"), 7, "gone")):
        assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_no_room_to_note_a_hole_keeps_the_space_until_the_whole_segment_goes(tmp_path, monkeypatch):
    appending, store = writer(tmp_path), PayloadStore(tmp_path)
    refs = appending.append([b"a" * PAGE, b"b" * PAGE])
    appending.close()

    def full(*_):
        ctypes.set_errno(errno.ENOSPC)
        return -1

    with monkeypatch.context() as patch:
        patch.setattr(disk._libc, "fallocate", full)
        store.free(refs[:1])
    assert PayloadReader(tmp_path).read(refs) == [b"a" * PAGE, b"b" * PAGE]
    store.free(refs[1:])
    assert store.bytes_on_disk() == 0


def test_payload_in_a_part_of_the_disk_that_cannot_be_read_is_lost(tmp_path):
    appending = writer(tmp_path)
    refs = appending.append([b"a", b"b"])
    appending.close()
    segment = tmp_path / refs[0].segment
    segment.unlink()
    segment.symlink_to("/proc/self/mem")  # its first bytes cannot be read, and the error is that of a disk that fails
    with pytest.raises(PayloadLost, match=rf"{refs[0].segment}.*the disk cannot read it any more"):
        PayloadReader(tmp_path).read(refs)
    assert PayloadStore(tmp_path).verify(refs) == refs


def test_a_disk_that_fails_while_payload_is_freed_is_named(tmp_path, monkeypatch):
    appending, store = writer(tmp_path), PayloadStore(tmp_path)
    refs = appending.append([b"a" * PAGE, b"b" * PAGE])
    appending.close()

    def fails(*_):
        ctypes.set_errno(errno.EIO)
        return -1

    monkeypatch.setattr(disk._libc, "fallocate", fails)
    with pytest.raises(OSError, match="Input/output error") as caught:
        store.free(refs[:1])
    assert caught.value.filename == str(tmp_path)


def test_another_error_of_the_disk_is_no_full_disk(tmp_path, monkeypatch):
    appending = writer(tmp_path)
    (ref,) = appending.append([b"a"])

    def broken(*_):
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(payload_module.os, "pwritev", broken)
        with pytest.raises(OSError, match="Input/output"):
            appending.append([b"b"])
    assert (tmp_path / ref.segment).stat().st_size == 1
