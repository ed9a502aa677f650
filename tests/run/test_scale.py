"""A run whose pool grows and shrinks while it trains, and whose generator gets SIGTERM, on the real engines."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from whole_run import Run, small_model

from asyncrl.core.buffer_statistics import GroupState
from asyncrl.run.summary import Status


def scale(run: Run, size: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "asyncrl.cli.main", "scale", str(run.folder), size]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def steps(run: Run) -> int:
    return run.output.count("step ")


def pid_of(run: Run, worker: str) -> int:
    """The process whose output goes to the worker's log."""
    log = str(run.folder / "logs" / f"{worker}.log")
    (process,) = [p for p in run.descendants() if "GeneratorActor" in p.name() + " ".join(p.cmdline()) and _has_open(p, log)]
    return int(process.pid)


def _has_open(process: psutil.Process, path: str) -> bool:
    return any(os.path.realpath(link) == path for link in Path(f"/proc/{process.pid}/fd").iterdir())


@pytest.mark.timeout(460)
def test_a_run_grows_and_shrinks_while_it_trains_and_what_is_handed_back_is_no_failure(tmp_path: Path) -> None:
    """One failure more than one would end the run, and three generators are told to end."""
    settings = ["steps=10000", "evaluation.every=10000", "generators.count=1", "generators.kv_cache_mb=64"]
    runs = tmp_path / "runs"
    runs.mkdir()
    run = Run.launch(small_model(tmp_path / "cache"), runs, *settings, "buffer.max_failures=1")
    try:
        run.wait_for(lambda: steps(run) >= 2, 180, "two training steps")
        answer = scale(run, "generators=3")
        assert (answer.returncode, answer.stdout) == (0, "generator-1, generator-2 are coming up\n"), answer.stderr
        refused = scale(run, "generators=0")
        assert refused.returncode == 2
        assert "0 is less than 1" in refused.stderr
        run.wait_for(lambda: all(f"generator-{n} is up" in run.output for n in (1, 2)), 180, "newcomers coming up")
        before = steps(run)
        run.wait_for(lambda: steps(run) > before, 90, "training with three engines")
        os.kill(pid_of(run, "generator-1"), signal.SIGTERM)
        run.wait_for(lambda: "generator-3 is up" in run.output, 180, "a successor after SIGTERM")
        assert "generator-1 was told to end by SIGTERM, and has handed its episodes back" in run.output
        before = steps(run)
        answer = scale(run, "generators=1")
        assert answer.stdout.endswith("hand back their episodes\n"), answer.stderr
        run.wait_for(lambda: run.output.count("has handed back its episodes, and ends") == 2, 60, "two generators ending")
        run.wait_for(lambda: steps(run) > before, 90, "training with one engine")
        run.process.send_signal(signal.SIGINT)
        run.end(60)
    finally:
        if run.process.poll() is None:
            run.kill()
    assert run.summary.status is Status.INTERRUPTED
    ledger = run.summary.ledger
    assert ledger.issued == sum(getattr(ledger, state) for state in GroupState)
    assert ledger.trained >= 4 * 6
    assert run.left_behind() == []
    assert scale(run, "generators=2").stderr.startswith(f"the run in {str(run.folder)!r} is not running")
