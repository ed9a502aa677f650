"""Whole runs on the real engines: to the end, interrupted, and with a generator killed. Nothing may be left behind."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from safetensors import safe_open

from asyncrl.run.summary import Status, Summary
from learners.tiny import ensure_tiny_model
from learners.tiny.warmup import WarmUp

SHORT = WarmUp(steps=3, lr_steps=1, batch_size=4, measure_every=2, skill=0.0, training_tasks=60, held_out_tasks=30)
STEPS = 4

pytestmark = pytest.mark.timeout(540)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model, hardly warmed up: what it answers does not matter here."""
    return ensure_tiny_model({}, 0, lambda progress: None, tmp_path_factory.mktemp("tiny"), SHORT)


class Run:
    """``asyncrl launch quickstart``, made small, as a process."""

    def __init__(self, model: Path, folder: Path, *overrides: str) -> None:
        small = [f"model.path={model}", f"run_dir={folder}", "batch.groups_per_step=4", "batch.group_size=4"]
        small += ["tasks.train=100", "tasks.evaluation=8", "evaluation.every=2", "sampling.max_turn_tokens=16"]
        command = [sys.executable, "-m", "asyncrl.cli.main", "launch", "quickstart", *small, *overrides]
        self._parent = folder
        self._output = folder / "output.txt"
        with self._output.open("wb") as output:
            self.process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        self._seen: dict[int, psutil.Process] = {}

    def wait_for(self, condition: Callable[[], bool], seconds: float, what: str) -> None:
        """Until ``condition`` holds; remembers every descendant on the way."""
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, f"{what} took longer than {seconds} s; output: {self.output}"
            if self.process.poll() is None:
                self._remember()
            time.sleep(0.1)

    def _remember(self) -> None:
        try:
            self._seen.update({child.pid: child for child in psutil.Process(self.process.pid).children(recursive=True)})
        except psutil.NoSuchProcess:
            return

    @property
    def output(self) -> str:
        """What it printed so far."""
        return self._output.read_text(errors="replace")

    def end(self, seconds: float) -> int:
        """Its exit code, once it has ended by itself."""
        self.wait_for(lambda: self.process.poll() is not None, seconds, "ending")
        return self.process.returncode

    @property
    def folder(self) -> Path:
        """The run folder."""
        (folder,) = [path for path in self._parent.iterdir() if path.is_dir()]
        return folder

    @property
    def summary(self) -> Summary:
        """How it ended."""
        return Summary.read(self.folder / "summary.json")

    def left_behind(self) -> list[str]:
        """Descendants that are still there."""
        assert self._seen, "no descendant was ever seen"
        return [" ".join(p.cmdline()) for p in self._seen.values() if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]


def test_a_small_run_from_start_to_end(model: Path, tmp_path: Path):
    run = Run(model, tmp_path, f"steps={STEPS}")
    assert run.end(400) == 0, run.output
    summary = run.summary
    assert (summary.status, summary.reason, summary.steps, summary.versions_published) == (Status.COMPLETED, "", STEPS, STEPS)
    ledger = summary.ledger
    assert (ledger.trained, ledger.issued) == (STEPS * 4, STEPS * 4 + ledger.failed + ledger.expired + ledger.filtered)
    assert ledger.running == ledger.committed == ledger.taken == 0
    assert 0 <= summary.staleness.mean <= summary.staleness.max <= summary.staleness.bound
    assert summary.tokens.generated >= summary.tokens.trained > 0
    assert summary.evaluation.first is not None
    with (
        safe_open(run.folder / "model" / "model.safetensors", "pt") as trained,
        safe_open(model / "model.safetensors", "pt") as start,
    ):
        assert sorted(trained.keys()) == sorted(start.keys())
    metrics = _tracked(run.folder)
    for name in (
        "reward/mean",
        "staleness/max",
        "mismatch/logprob_gap_mean_abs",
        "publish/pause_seconds",
        "idle/learner",
        "loss/policy",
    ):
        assert name in metrics
    assert metrics["mismatch/logprob_gap_mean_abs"] < 0.2, "engine and learner disagree about the same weights"
    assert metrics["generators/versions_sampled"] >= 1
    assert run.left_behind() == []


def _tracked(folder: Path) -> dict[str, float]:
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{folder / 'mlflow.db'}")
    (experiment,) = client.search_experiments(filter_string="name = 'asyncrl'")
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.status == "FINISHED"
    assert run.data.params["steps"] == str(STEPS)
    return run.data.metrics


def test_ctrl_c_ends_everything_in_time(model: Path, tmp_path: Path):
    run = Run(model, tmp_path, "steps=10000", "generators.count=1")
    run.wait_for(lambda: "step 1/" in run.output, 300, "training to begin")
    run.process.send_signal(signal.SIGINT)
    interrupted = time.monotonic()
    assert run.end(60) == 130
    assert time.monotonic() - interrupted < 15
    assert run.summary.status is Status.INTERRUPTED
    assert run.left_behind() == []


def test_a_killed_generator_ends_the_run_with_its_name(model: Path, tmp_path: Path):
    run = Run(model, tmp_path, "steps=10000", "generators.count=1")
    run.wait_for(lambda: "step 1/" in run.output, 300, "training to begin")
    (generator,) = [p for p in run._seen.values() if p.is_running() and "Generator" in " ".join(p.cmdline())]
    os.kill(generator.pid, signal.SIGKILL)
    assert run.end(60) == 1
    assert run.summary.status is Status.FAILED
    assert "generator" in run.summary.reason
    assert run.left_behind() == []
