"""Whole runs on the real engines: to the end, interrupted, and with a generator killed. Nothing may be left behind."""

import os
import signal
import time
from pathlib import Path

import pytest
from safetensors import safe_open
from whole_run import Run, small_model

from asyncrl.run.folder import RunFolder
from asyncrl.run.logs import read_logs
from asyncrl.run.summary import Status

STEPS = 4

pytestmark = pytest.mark.timeout(540)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_model(tmp_path_factory.mktemp("tiny"))


def test_a_small_run_from_start_to_end(model: Path, tmp_path: Path):
    inert = ("algorithm.loss={kind: ppo_clip}", "algorithm.correction={anchor: proximal_recomputed, weight: token}")
    run = Run.launch(model, tmp_path, f"steps={STEPS}", "++algorithm.minibatches=1", "++algorithm.epochs=1", *inert)
    assert run.end(400) == 0, run.output
    for told in (run.output, (run.folder / "logs" / "driver.log").read_text()):
        assert told.count("algorithm.loss of kind ppo_clip is plain REINFORCE") == 1
    records = list(read_logs(RunFolder.find(run.folder)))
    assert [record.time for record in records] == sorted(record.time for record in records)
    assert {record.process for record in records} >= {"driver", "generator-0", "learner-0"}
    assert any("Starting Ray" in record.lines[0] for record in records if record.process == "driver")
    assert not any("Attempted to load weight" in line for record in records for line in record.lines)
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

    client = MlflowClient(f"sqlite:///{folder.parent / 'mlflow.db'}")
    (experiment,) = client.search_experiments(filter_string="name = 'asyncrl'")
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.status == "FINISHED"
    assert run.data.params["steps"] == str(STEPS)
    return run.data.metrics


def test_ctrl_c_ends_everything_in_time(model: Path, tmp_path: Path):
    run = Run.launch(model, tmp_path, "steps=10000", "generators.count=1")
    run.wait_for(lambda: "step 1/" in run.output, 300, "training to begin")
    run.process.send_signal(signal.SIGINT)
    interrupted = time.monotonic()
    assert run.end(60) == 130
    assert time.monotonic() - interrupted < 15
    assert (run.summary.status, run.summary.reason) == (Status.INTERRUPTED, "stopped by SIGINT")
    assert run.left_behind() == []


def test_sigterm_to_every_process_ends_everything_in_time(model: Path, tmp_path: Path):
    """A batch system sends it to all; ``timeout`` and the like send it to fewer: the driver and its group."""
    run = Run.launch(model, tmp_path, "steps=10000", "generators.count=1")
    run.wait_for(lambda: "step 1/" in run.output, 300, "training to begin")
    others = [p for p in run.descendants() if not any(name in " ".join(p.cmdline()) for name in ("Generator", "EngineCore"))]
    assert {"raylet", "gcs_server", "ray::LearnerActor", "ray::BufferActor"} <= {p.name().partition(".")[0] for p in others}
    for process in others:
        process.terminate()
    lines = run.output.count("step ")
    run.wait_for(lambda: run.output.count("step ") > lines + 1, 120, "training to go on although others were sent SIGTERM")
    everything = run.descendants()
    run.process.terminate()
    terminated = time.monotonic()
    for process in everything:
        process.terminate()
    run.process.terminate()
    assert run.end(60) == 130, run.output
    assert time.monotonic() - terminated < 15
    assert (run.summary.status, run.summary.reason) == (Status.INTERRUPTED, "stopped by SIGTERM")
    assert "Interrupted: stopped by SIGTERM" in run.output
    assert "Traceback" not in run.output
    assert run.left_behind() == []


def test_a_killed_generator_is_replaced_and_nothing_is_lost(model: Path, tmp_path: Path):
    run = Run.launch(model, tmp_path, "steps=60", "evaluation.every=60", "generators.count=2")
    run.wait_for(lambda: "step 1/" in run.output, 300, "training to begin")
    (generator, *_) = [p for p in run._seen.values() if p.is_running() and "Generator" in " ".join(p.cmdline())]
    os.kill(generator.pid, signal.SIGKILL)
    assert run.end(300) == 0, run.output
    summary = run.summary
    assert summary.status is Status.COMPLETED
    assert "died" in run.output
    assert summary.ledger.trained == 60 * 4
    assert summary.ledger.issued == summary.ledger.trained + summary.ledger.expired + summary.ledger.filtered
    assert run.left_behind() == []
