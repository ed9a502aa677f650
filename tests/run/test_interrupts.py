"""Runs and evaluations on the real engines that a signal ends. Nothing may be left behind."""

import contextlib
import signal
import time
from collections.abc import Iterable
from pathlib import Path

import psutil
import pytest
from whole_run import ASYNCRL, Run, small_model

from asyncrl.run.evaluation_summary import EvaluationSummary
from asyncrl.run.summary import Status

pytestmark = pytest.mark.timeout(540)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_model(tmp_path_factory.mktemp("tiny"))


def test_ctrl_c_ends_an_evaluation_in_time(model: Path, tmp_path: Path):
    small = (f"run_dir={tmp_path}", "tasks.evaluation=2000", "generators.count=1")
    run = Run(tmp_path, *ASYNCRL, "evaluate", str(model), "quickstart", *small)
    run.wait_for(lambda: "Playing" in run.output, 300, "episodes to be played")
    run.process.send_signal(signal.SIGINT)
    interrupted = time.monotonic()
    assert run.end(60) == 130, run.output
    assert time.monotonic() - interrupted < 15
    (scores,) = tmp_path.glob("evaluation-*/evaluation.json")
    summary = EvaluationSummary.read(scores)
    assert (summary.status, summary.reason, summary.models) == (Status.INTERRUPTED, "stopped by SIGINT", ())
    assert run.left_behind() == []


def test_sigterm_to_every_process_ends_everything_in_time(model: Path, tmp_path: Path):
    """A batch system sends it to all; ``timeout`` and the like send it to fewer: the driver and its group."""
    run = Run.launch(model, tmp_path, "steps=10000", "generators.count=1")
    run.wait_for(lambda: "step 1/" in run.output, 300, "training to begin")
    spared = {*run.descendants("Generator"), *run.descendants("EngineCore"), *run.descendants("forkserver")}
    others = [process for process in run.descendants() if process not in spared]
    assert {"raylet", "gcs_server", "ray::LearnerActor", "ray::BufferActor"} <= terminate(others)
    lines = run.output.count("step ")
    run.wait_for(lambda: run.output.count("step ") > lines + 1, 120, "training to go on although others were sent SIGTERM")
    everything = run.descendants()
    run.process.terminate()
    terminated = time.monotonic()
    terminate(everything)
    run.process.terminate()
    assert run.end(60) == 130, run.output
    assert time.monotonic() - terminated < 15
    assert (run.summary.status, run.summary.reason) == (Status.INTERRUPTED, "stopped by SIGTERM")
    assert "Interrupted: stopped by SIGTERM" in run.output
    assert "Traceback" not in run.output
    assert run.left_behind() == []


def terminate(processes: Iterable[psutil.Process]) -> set[str]:
    """Send SIGTERM to those that have not ended meanwhile; returns their names."""
    names = set()
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            names.add(process.name().partition(".")[0])
            process.terminate()
    return names
