"""A run whose pool grows and shrinks while it trains, whose generator gets SIGTERM, and that Ctrl-C ends, on the real engines."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from whole_run import ASYNCRL, Run, small_model

from asyncrl.core.buffer_statistics import GroupState
from asyncrl.run.summary import Status


def scale(run: Run, size: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *ASYNCRL, "scale", str(run.folder), size]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def steps(run: Run) -> int:
    return run.output.count("step ")


def process_of(run: Run, worker: str) -> psutil.Process:
    """The process whose output goes to the worker's log."""
    log = str(run.folder / "logs" / f"{worker}.log")
    (process,) = [process for process in run.descendants("GeneratorActor") if _has_open(process, log)]
    return process


def _has_open(process: psutil.Process, path: str) -> bool:
    return any(os.path.realpath(link) == path for link in Path(f"/proc/{process.pid}/fd").iterdir())


@pytest.mark.timeout(460)
def test_a_run_grows_and_shrinks_while_it_trains_and_what_is_handed_back_is_no_failure(tmp_path: Path) -> None:
    """One failure more than one would end the run, and two generators are told to end. Then Ctrl-C ends everything in time."""
    settings = ["steps=10000", "evaluation.every=10000", "generators.count=1", "generators.kv_cache_mb=64"]
    runs = tmp_path / "runs"
    runs.mkdir()
    run = Run.launch(small_model(tmp_path / "cache"), runs, *settings, "buffer.max_failures=1")
    try:
        run.wait_for(lambda: steps(run) >= 2, 180, "two training steps")
        answer = scale(run, "generators=2")
        assert (answer.returncode, answer.stdout) == (0, "generator-1 is coming up\n"), answer.stderr
        refused = scale(run, "generators=0")
        assert refused.returncode == 2
        assert "0 is less than 1" in refused.stderr
        run.wait_for(lambda: "generator-1 is up" in run.output, 180, "the newcomer coming up")
        before = steps(run)
        run.wait_for(lambda: steps(run) > before, 90, "training with two engines")
        process_of(run, "generator-1").terminate()
        run.wait_for(lambda: "generator-2 is up" in run.output, 180, "a successor after SIGTERM")
        assert "generator-1 was told to end by SIGTERM, and has handed its episodes back" in run.output
        before = steps(run)
        answer = scale(run, "generators=1")
        assert answer.stdout.endswith("hands back its episodes\n"), answer.stderr
        run.wait_for(lambda: "has handed back its episodes, and ends" in run.output, 60, "a generator ending")
        run.wait_for(lambda: steps(run) > before, 90, "training with one engine")
        run.process.send_signal(signal.SIGINT)
        interrupted = time.monotonic()
        assert run.end(60) == 130
        assert time.monotonic() - interrupted < 15
    finally:
        if run.process.poll() is None:
            run.kill()
    assert (run.summary.status, run.summary.reason) == (Status.INTERRUPTED, "stopped by SIGINT")
    ledger = run.summary.ledger
    assert ledger.issued == sum(getattr(ledger, state) for state in GroupState)
    assert ledger.trained >= 4 * 6
    assert run.left_behind() == []
    assert scale(run, "generators=2").stderr.startswith(f"the run in {str(run.folder)!r} is not running")
