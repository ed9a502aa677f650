"""Whole runs on the real engines that are killed and resumed. Nothing finished is lost, nothing is trained twice."""

from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from whole_run import Run, small_model

from asyncrl.run.summary import Status

STEPS = 40

pytestmark = pytest.mark.timeout(560)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_model(tmp_path_factory.mktemp("tiny"))


def test_a_run_killed_twice_ends_as_if_it_had_not_been(model: Path, tmp_path: Path):
    first = Run.launch(model, tmp_path, f"steps={STEPS}", "checkpoint.every=7", f"evaluation.every={STEPS}", "generators.count=1")
    first.wait_for(lambda: any(tmp_path.glob("*/checkpoints/version-000007")), 300, "the first checkpoint")
    first.kill()
    folder = first.folder

    second = Run.resume(folder)
    second.wait_for(lambda: any(tmp_path.glob("*/checkpoints/version-000021")), 200, "the third checkpoint")
    second.kill("LearnerActor")
    assert second.end(60) == 1
    assert "learner" in second.summary.reason
    assert second.left_behind() == []

    third = Run.resume(folder)
    assert third.end(300) == 0, third.output
    _check_whole(third, folder, STEPS, resumes=2)

    again = Run.resume(folder)
    assert again.end(60) == 2
    assert f"has completed its {STEPS} training steps, so there is nothing to resume" in again.output

    recipe = folder / "recipe.yaml"
    recipe.write_text(recipe.read_text().replace(f"\nsteps: {STEPS}\n", f"\nsteps: {STEPS + 5}\n"))
    longer = Run.resume(folder)
    assert longer.end(200) == 0, longer.output
    _check_whole(longer, folder, STEPS + 5, resumes=3)


def _check_whole(run: Run, folder: Path, steps: int, *, resumes: int) -> None:
    assert run.left_behind() == []
    summary = run.summary
    assert (summary.status, summary.steps, summary.resumes) == (Status.COMPLETED, steps, resumes)
    assert summary.versions_published == steps
    ledger = summary.ledger
    assert (ledger.trained, ledger.running, ledger.committed, ledger.taken, ledger.failed) == (steps * 4, 0, 0, 0, 0)
    assert ledger.issued == ledger.trained + ledger.expired + ledger.filtered
    assert _tracked_steps(folder) == Counter(range(1, steps + 1))
    kept = pq.read_table(folder / "trajectories", columns=["kind", "step", "group_id", "sample_index"]).to_pylist()
    trained = Counter((row["step"], row["group_id"], row["sample_index"]) for row in kept if row["kind"] == "train")
    assert Counter(step for step, _, _ in trained) == dict.fromkeys(range(1, steps + 1), 8), "a sample of 8 of each step, once"
    assert set(trained.values()) == {1}


def _tracked_steps(folder: Path) -> Counter[int]:
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{folder.parent / 'mlflow.db'}")
    (experiment,) = client.search_experiments(filter_string="name = 'asyncrl'")
    (run,) = client.search_runs([experiment.experiment_id])
    return Counter(point.step for point in client.get_metric_history(run.info.run_id, "reward/mean"))
