import math
from pathlib import Path

import msgspec
import pytest

from asyncrl.core.files.file_formats import UnknownFormat
from asyncrl.core.measures.metrics import Reading
from asyncrl.learners.metrics import GRAD_NORM, POLICY_LOSS
from asyncrl.learners.step_report import Hardware, StepReport
from asyncrl.run.folder.step_log import Launched, RecordedSteps, StepLog, StepRecord

HARDWARE = Hardware("a processor", 2, "2.9")


def record(step: int, loss: float, fingerprint: int | None) -> StepRecord:
    readings = [Reading(POLICY_LOSS, loss), Reading(GRAD_NORM, 0.1 + step)]
    reports = [StepReport([], weights_moved=True), StepReport(readings, weights_moved=True, hardware=HARDWARE)]
    return StepRecord.of(step, reports, fingerprint)


def written(path: Path, *lines: Launched | StepRecord) -> RecordedSteps:
    log = StepLog(path / "steps.jsonl")
    for line in lines:
        log.append(line)
    return RecordedSteps(log.read())


def test_what_is_written_is_read_back_to_the_bit(tmp_path: Path):
    largest = 2**64 - 1
    steps = written(tmp_path, Launched(0, "steps: 3"), record(1, 0.1 + 0.2, largest), record(2, 1e-17, 0))
    assert steps[1].readings == {"loss/policy": 0.1 + 0.2, "learner/grad_norm": 1.1}
    assert (steps[1].fingerprint, steps[2].fingerprint, steps[1].hardware) == ("f" * 16, "0" * 16, HARDWARE)
    assert (steps[3], steps.last, steps.recipe_of(2)) == (None, 2, "steps: 3")


@pytest.mark.parametrize("end", [b'"fingerprint', b',"hardware'])  # the second leaves a line that ends like a whole one
def test_a_line_that_a_crash_has_torn_counts_as_none_and_swallows_no_other(tmp_path: Path, end: bytes):
    written(tmp_path, record(1, 0.5, 7))
    path = tmp_path / "steps.jsonl"
    path.write_bytes(path.read_bytes().partition(end)[0])
    assert written(tmp_path, record(2, 0.5, 8)).last == 2
    assert RecordedSteps(StepLog(path).read())[1] is None


def test_readings_that_json_cannot_say_are_left_out_and_the_rest_is_read(tmp_path: Path):
    odd = msgspec.structs.replace(record(1, 0.5, 7), readings={"a": math.inf, "b": math.nan, "c": 2.5})
    assert written(tmp_path, odd)[1] == msgspec.structs.replace(odd, readings={"c": 2.5})


@pytest.mark.parametrize(("again", "fingerprint"), [(0.5, "0" * 15 + "7"), (0.25, None)])
def test_a_step_that_a_resume_does_again_keeps_what_was_published_only_if_it_is_the_same(tmp_path, again, fingerprint):
    lines = Launched(0, "lr: 1"), record(1, 0.5, 7), Launched(0, "lr: 2"), record(1, again, None)
    steps = written(tmp_path, *lines)
    assert (steps[1].fingerprint, steps.recipe_of(1)) == (fingerprint, "lr: 2")


def test_a_file_of_another_version_is_refused_by_name(tmp_path: Path):
    (tmp_path / "steps.jsonl").write_text('{"type":"unheard-of"}\n')
    with pytest.raises(UnknownFormat, match=r"steps.jsonl has a line 1"):
        StepLog(tmp_path / "steps.jsonl").read()


def test_a_disk_that_refuses_a_line_ends_no_run(tmp_path: Path, caplog):
    StepLog(tmp_path / "missing" / "steps.jsonl").append(record(1, 0.5, 7))
    assert "lacks a line" in caplog.text
