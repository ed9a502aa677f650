"""A run whose pool grows and shrinks while it trains, and whose processes get SIGTERM: one, others, and all; on real engines."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from sqlite3 import connect

import psutil
import pytest
from unhindered import Unhindered
from unhurried import PLACE, UNHURRIED
from whole_run import ASYNCRL, Run, lives

from asyncrl.core.measures.buffer_statistics import GroupState
from asyncrl.run.measures.summary import Status

BEGUN_SINCE = 3
"""The last of so many training steps has begun since: with ``buffer.pipeline_depth=1`` groups of two may be outstanding."""


def scale(run: Run, size: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *ASYNCRL, "scale", str(run.folder), size]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def steps(run: Run) -> int:
    """How many training steps are recorded. The run prints one in 15 seconds."""
    if "Training steps" not in run.output:
        return 0
    with closing(connect(run.folder.parent / "mlflow.db", timeout=10)) as database:
        (count,) = database.execute("select count(*) from metrics where key = 'learner/step_seconds'").fetchone()
    return int(count)


def process_of(run: Run, worker: str) -> psutil.Process:
    """The process whose output goes to the worker's log."""
    log = str(run.folder / "logs" / f"{worker}.log")
    (process,) = [process for process in run.descendants("GeneratorActor") if _has_open(process, log)]
    return process


def _has_open(process: psutil.Process, path: str) -> bool:
    return any(os.path.realpath(link) == path for link in Path(f"/proc/{process.pid}/fd").iterdir())


def terminate(processes: Iterable[psutil.Process]) -> dict[str, psutil.Process]:
    """Send SIGTERM to those that have not ended meanwhile; returns them by name."""
    sent = {}
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            sent[process.name().partition(".")[0]] = process
            process.terminate()
    return sent


@pytest.mark.timeout(1500)
def test_a_run_grows_and_shrinks_while_it_trains_and_what_is_handed_back_is_no_failure(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One failure more than one would end the run, and two generators are told to end. Then SIGTERM goes to all but generators,
    which changes nothing, and at last to every process, as from a batch system: the run ends in time and leaves nothing behind.
    """
    monkeypatch.setenv("PYTHONPATH", PLACE, prepend=os.pathsep)
    settings = ["steps=10000", "evaluation.every=10000", "generators.count=1", "generators.kv_cache_mb=64"]
    settings += [UNHURRIED, "buffer.pipeline_depth=1", "buffer.max_failures=1"]
    run = Run.launch(tiny_model, tmp_path, *settings)
    try:
        run.wait_for(lambda: steps(run) >= 2, 600, "two training steps")
        answer = scale(run, "generators=2")
        assert (answer.returncode, answer.stdout) == (0, "generator-1 is coming up\n"), answer.stderr
        refused = scale(run, "generators=0")
        assert refused.returncode == 2
        assert "nobody would play with 0 engines" in refused.stderr
        run.wait_for(lambda: "generator-1 is up" in run.output, 400, "the newcomer coming up")
        before = steps(run)
        run.wait_for(lambda: steps(run) >= before + BEGUN_SINCE, 300, "training with two engines")
        process_of(run, "generator-1").terminate()
        run.wait_for(lambda: "generator-2 is up" in run.output, 400, "a successor after SIGTERM")
        assert "generator-1 was told to end by SIGTERM, and has handed its episodes back" in run.output
        before = steps(run)
        answer = scale(run, "generators=1")
        assert answer.stdout.endswith("hands back its episodes\n"), answer.stderr
        run.wait_for(lambda: "has handed back its episodes, and ends" in run.output, 200, "a generator ending")
        run.wait_for(lambda: steps(run) >= before + BEGUN_SINCE, 300, "training with one engine")
        spared = {*run.descendants("Generator"), *run.descendants("EngineCore"), *run.descendants("forkserver")}
        others = [process for process in run.descendants() if process not in spared]
        lasting = {"raylet", "gcs_server", "ray::LearnerActor", "ray::BufferActor"}
        sent = terminate(others)
        assert lasting <= sent.keys()
        before = steps(run)
        run.wait_for(lambda: steps(run) >= before + BEGUN_SINCE, 300, "training to go on although others were sent SIGTERM")
        assert [name for name in lasting if not lives(sent[name])] == []
        everything = run.descendants()
        run.process.terminate()
        ending = Unhindered()
        terminate(everything)
        run.process.terminate()  # `timeout` and the like send it to the driver and to its group
        assert run.end(200) == 130, run.output
        assert ending.seconds < 15
    finally:
        if run.process.poll() is None:
            run.kill()
    assert (run.summary.status, run.summary.reason) == (Status.INTERRUPTED, "stopped by SIGTERM")
    assert "Interrupted: stopped by SIGTERM" in run.output
    assert "Traceback" not in run.output
    ledger = run.summary.ledger
    assert ledger.issued == sum(getattr(ledger, state) for state in GroupState)
    assert ledger.trained >= 4 * 6
    assert run.left_behind() == []
    assert scale(run, "generators=2").stderr.startswith(f"the run in {str(run.folder)!r} is not running")
