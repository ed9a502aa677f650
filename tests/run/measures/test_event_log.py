"""The record of what happens in a run: each event once, whole, while the run goes on and afterwards."""

import logging
import math
from pathlib import Path

import msgspec
import pytest
from made_progress import PROGRESS

from asyncrl.run.folder.run_folder import RunFolder
from asyncrl.run.measures.event_log import EventLog, EventReader, follow_events, last_event
from asyncrl.run.measures.events import EvaluationDone, NoteSaid, PhaseAdvanced, PhaseBegun, RunEnded, StepDone, finite
from asyncrl.run.measures.summary import Status


def progress(step):
    return msgspec.structs.replace(PROGRESS, step=step)


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    (tmp_path / "recipe.yaml").touch()
    return RunFolder(tmp_path)


def test_events_are_read_as_they_were_told_each_once_and_with_their_times(folder: RunFolder):
    now = [100.0]
    log, reader = EventLog(folder.events, lambda: now[0]), EventReader(folder.events)
    assert reader.new() == []
    log.tell(PhaseBegun(text="Starting"))
    now[0] = 101.5
    log.tell(StepDone(progress=progress(3), metrics=finite({"loss/policy": 0.5, "gap": math.nan})))
    began, done = reader.new()
    assert (began, done.at, done.step, done.metrics) == (PhaseBegun(at=100.0, text="Starting"), 101.5, 3, {"loss/policy": 0.5})
    assert done.progress == progress(3)
    assert reader.new() == []
    log.tell(RunEnded(status=Status.COMPLETED, steps=3))
    assert [type(event) for event in reader.new()] == [RunEnded]


def test_a_line_that_a_killed_process_left_swallows_no_other(folder: RunFolder):
    EventLog(folder.events).tell(NoteSaid(text="whole", level=20))
    with folder.events.open("ab") as file:
        file.write(b'{"type":"NoteSaid","text":"to')
    reader = EventReader(folder.events)
    assert [event.text for event in reader.new()] == ["whole"]
    log = EventLog(folder.events)
    for text in ("next", "last"):
        log.tell(NoteSaid(text=text, level=20))
    assert [event.text for event in reader.new()] == ["next", "last"]


def test_a_phase_that_says_often_how_far_it_is_has_a_line_a_second(folder: RunFolder):
    now = [0.0]
    log = EventLog(folder.events, lambda: now[0])
    for tenth in range(31):
        now[0] = 10 + tenth / 10
        log.tell(PhaseAdvanced(fraction=tenth / 30, text=""))
    assert [event.fraction for event in EventReader(folder.events).new()] == [0.0, 1 / 3, 2 / 3, 1.0]


def test_a_clock_that_is_set_back_hides_no_progress(folder: RunFolder):
    times = iter([5000.0, 1000.0, 1000.5])
    log = EventLog(folder.events, clock=lambda: next(times))
    for fraction in (0.25, 0.5, 0.75):
        log.tell(PhaseAdvanced(fraction=fraction, text=""))
    assert [event.fraction for event in EventReader(folder.events).new()] == [0.25, 0.5]


def test_whoever_follows_sees_everything_until_nobody_drives_the_run(folder: RunFolder):
    log, seen, waited = EventLog(folder.events), [], ["d", "b"]
    with folder.driven():
        log.tell(PhaseBegun(text="a"))
        following = follow_events(folder, wait=lambda seconds: log.tell(PhaseBegun(text=waited.pop())))
        seen += [next(following).text, next(following).text]
        log.tell(PhaseBegun(text="c"))
    assert seen + [event.text for event in following] == ["a", "b", "c", "d"]


def test_the_last_event_of_a_kind_is_found_in_the_end_of_a_long_file(folder: RunFolder):
    log = EventLog(folder.events)
    log.tell(EvaluationDone(version=0, reward=0.25))
    for step in (1, 2):
        log.tell(StepDone(progress=progress(step)))
    assert last_event(folder.events, StepDone).step == 2
    assert last_event(folder.events, EvaluationDone).reward == 0.25
    assert last_event(folder.events, RunEnded) is None
    assert last_event(folder.events, EvaluationDone, most_bytes=300) is None
    assert last_event(folder.path / "nowhere", StepDone) is None


def test_names_of_files_that_are_not_utf8_end_nothing(folder: RunFolder):
    log = EventLog(folder.events)
    log.tell(NoteSaid(text="caf\udce9 is full", level=logging.INFO))
    log.tell(RunEnded(status=Status.FAILED, reason="caf\udce9 is full"))
    note, end = EventReader(folder.events).new()
    assert note.text == end.reason == "caf\\udce9 is full"


def test_a_disk_that_refuses_is_logged_and_ends_nothing(folder: RunFolder, caplog: pytest.LogCaptureFixture):
    folder.events.mkdir()
    with caplog.at_level(logging.WARNING):
        EventLog(folder.events).tell(PhaseBegun(text="a"))
    assert "events.jsonl lacks a line, which whoever watches the run does not see" in caplog.text
