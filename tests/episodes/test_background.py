"""Files written beside training: in order, and without a word or a wait more than needed when the disk refuses."""

import logging
import threading

import pyarrow.parquet as pq
import pytest
from played_episodes import episode, words

from asyncrl.episodes import background
from asyncrl.episodes.background import BackgroundWriter
from asyncrl.episodes.schema import Kind
from asyncrl.episodes.writer import untrained


def episodes(step, count=1):
    return lambda: [untrained(episode(group), 0, Kind.TRAIN, step=step, version=step - 1, source="s") for group in range(count)]


def test_files_are_written_and_flushing_waits_for_them(tmp_path):
    writer = BackgroundWriter(lambda source: "world", lambda: words)
    assert writer.flush(0), "nothing was handed over"
    for step in (1, 2):
        writer.put(tmp_path / f"{step}.parquet", episodes(step, count=step))
    assert writer.flush(60)
    assert [len(pq.read_table(tmp_path / f"{step}.parquet")) for step in (1, 2)] == [1, 2]
    assert writer.news() == ""


def test_a_disk_that_refuses_is_told_once_and_then_counted(tmp_path, caplog):
    writer = BackgroundWriter(lambda source: "world", lambda: words)
    blocked = tmp_path / "trajectories"
    blocked.touch()  # a file where the folder should be: whatever is written there is refused
    for step in (1, 2, 3):
        writer.put(blocked / f"{step}.parquet", episodes(step))
    assert writer.flush(60)
    assert writer.news().startswith(f"{blocked / '1.parquet'} is not written (")
    assert writer.news() == ""
    blocked.unlink()
    writer.put(blocked / "4.parquet", episodes(4))
    assert writer.flush(60)
    assert writer.news() == "trajectories are written again; 3 files of them are missing"
    assert [file.name for file in blocked.iterdir()] == ["4.parquet"]
    own = [record.levelno for record in caplog.records if record.name == background.__name__]
    assert own == [logging.WARNING] * 2


def test_a_tokenizer_that_cannot_be_loaded_ends_nothing_and_is_told_with_its_traceback(tmp_path, caplog):
    def load():
        raise RuntimeError("no such tokenizer")

    writer = BackgroundWriter(lambda source: "world", load)
    writer.put(tmp_path / "1.parquet", episodes(1))
    assert writer.flush(60)
    assert "RuntimeError: no such tokenizer" in writer.news()
    assert "Traceback" in caplog.text
    assert list(tmp_path.iterdir()) == []


def test_whoever_trains_waits_for_a_slow_disk_only_so_long(tmp_path, monkeypatch):
    monkeypatch.setattr(background, "WAIT_S", 0.05)
    going_on = threading.Event()

    def load():
        assert going_on.wait(60)
        return words

    writer = BackgroundWriter(lambda source: "world", load)
    count = background.QUEUE_LENGTH + 2  # one is being written
    for step in range(1, count + 1):
        writer.put(tmp_path / f"{step}.parquet", episodes(step))
        if step == 1:
            assert not writer.flush(0.05)
    assert "slower than training" in writer.news()
    going_on.set()
    assert writer.flush(60)
    assert "files of them are missing" in writer.news()
    assert 1 <= count - len(list(tmp_path.iterdir())) <= 2


@pytest.mark.parametrize("count", [1, 3])
def test_a_file_written_again_takes_the_place_of_the_first(tmp_path, count):
    writer = BackgroundWriter(lambda source: "world", lambda: words)
    writer.put(tmp_path / "1.parquet", episodes(1, count=2))
    writer.put(tmp_path / "1.parquet", episodes(1, count=count))
    assert writer.flush(60)
    assert len(pq.read_table(tmp_path / "1.parquet")) == count
