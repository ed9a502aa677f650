"""Checks of a small run that has completed, on the real engines: what it printed, counted, tracked, kept and left."""

from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from read_back import check_readable
from safetensors import safe_open
from whole_run import Run

from asyncrl.core.measures.time_split import GENERATORS, LEARNER
from asyncrl.run.folder.run_folder import RunFolder
from asyncrl.run.measures.declared_metrics import metric_called
from asyncrl.run.measures.summary import Status
from asyncrl.run.views.logs import read_logs

STEPS = 4
OVERRIDES = (
    f"steps={STEPS}",
    "tracking.trajectories={keep: all}",
    # With one optimizer step this loss is plain REINFORCE, and the run says so.
    "algorithm.loss={kind: ppo_clip}",
    "algorithm.correction={anchor: proximal_recomputed, weight: token}",
    "++algorithm.minibatches=1",
    "++algorithm.epochs=1",
)
"""What the checks expect beside the small run's own overrides."""


def check_ended(run: Run, model: Path, elsewhere: Path) -> None:
    """The run began with ``model``; ``elsewhere`` is a folder in which commands that read it are run."""
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
    assert [name for name in metrics if metric_called(name) is None] == [], "docs/reference/metrics.md lists every metric"
    _check_where_time_went(run.folder)
    _check_warnings(run)
    assert run.left_behind() == []
    _check_kept(run)
    check_readable(run.folder, elsewhere)


def _check_kept(run: Run) -> None:
    """Under ``keep: all`` every episode that the summary counts is kept, and a sample of them is traced."""
    summary, trajectories = run.summary, run.folder / "trajectories"
    assert {file.name for file in trajectories.glob("train-*")} == {f"train-{step:06d}-0.parquet" for step in range(1, STEPS + 1)}
    kept = pq.read_table(trajectories).to_pylist()
    trained = [row for row in kept if row["kind"] == "train"]
    evaluated = Counter(row["version"] for row in kept if row["kind"] == "evaluation")
    assert Counter(row["step"] for row in trained) == dict.fromkeys(range(1, STEPS + 1), 16)
    assert len({(row["step"], row["group_id"], row["sample_index"]) for row in trained}) == summary.ledger.trained * 4
    assert {0: 8, 2: 8, STEPS: 8}.items() <= evaluated.items()
    fates = Counter(fate for row in trained for fate in row["fates"])
    assert fates["trained"] + fates["masked"] + fates["rejected"] == summary.tokens.trained
    for row in trained:
        sampled = np.array([fate != "given" for fate in row["fates"]])
        assert (np.array(row["versions"]) >= 0).tolist() == sampled.tolist()
        assert (np.array(row["weights"]) > 0).tolist() == [fate == "trained" for fate in row["fates"]]
        fresh = sampled & (np.array(row["versions"]) == row["version"])
        gap = np.abs(np.array(row["learner_logprobs"]) - np.array(row["logprobs"]))
        assert gap[fresh].max(initial=0) < 1, "these are the log-probabilities of other tokens"
        assert row["prompt"].startswith("<|im_start|>")
        assert row["turns"][0]["text"]
    assert {row["environment"] for row in kept} == {"calculator"}
    assert {row["source"] for row in trained} == {"generated"}

    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{run.folder.parent / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("asyncrl")
    traces = client.search_traces(locations=[experiment.experiment_id], include_spans=False)
    of_steps = Counter(trace.info.tags["step"] for trace in traces if trace.info.tags["kind"] == "train")
    assert of_steps[str(STEPS)] == 8
    assert Counter(trace.info.tags["version"] for trace in traces if trace.info.tags["kind"] == "evaluation")["0"] == 8


def _tracked(folder: Path) -> dict[str, float]:
    _, run = _mlflow_run(folder)
    assert run.info.status == "FINISHED"
    assert run.data.params["steps"] == str(STEPS)
    return run.data.metrics


def _mlflow_run(folder: Path):
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{folder.parent / 'mlflow.db'}")
    (experiment,) = client.search_experiments(filter_string="name = 'asyncrl'")
    (run,) = client.search_runs([experiment.experiment_id])
    return client, run


def _history(folder: Path, name: str) -> list[float]:
    client, run = _mlflow_run(folder)
    return [each.value for each in client.get_metric_history(run.info.run_id, name)]


def _check_where_time_went(folder: Path) -> None:
    """The parts of each side add up to every step, and both sides did what they are there for."""
    for side, parts, most in (("learner", LEARNER, ("forward", "backward")), ("generators", GENERATORS, ("prefill", "decode"))):
        spent = {part: _history(folder, f"time/{side}/{part}") for part in parts}
        for of_step in zip(*spent.values(), strict=True):
            assert sum(of_step) == pytest.approx(1.0, abs=0.02)
        assert min(sum(spent[part]) for part in most) > 0


def _check_warnings(run: Run) -> None:
    """The model is hardly warmed up: it goes on until a limit cuts it, and is hardly ever right."""
    (cut,) = [warning for warning in run.summary.warnings if "of the episodes in the last" in warning and "were cut" in warning]
    assert "sampling.max_turn_tokens = 16" in cut
    assert run.output.count(cut) == 2, "it is told when it is seen, and at the end"
    equal = any(warning.startswith("the rewards of every group were equal") for warning in run.summary.warnings)
    assert equal == (_history(run.folder, "reward/zero_variance_groups") == [1.0] * STEPS)
