"""A whole run on the real engines that loses processes and is resumed. Nothing finished is lost, nothing is trained twice."""

from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from whole_run import Run, lives

from asyncrl.run.measures.summary import Status

STEPS = 9

pytestmark = pytest.mark.timeout(1200)


def test_a_run_that_loses_its_learner_ends_as_if_it_had_not_and_can_be_made_longer(tiny_model: Path, tmp_path: Path):
    """And its only generator is killed before that: another one takes its place, and nothing is left of its engine."""
    settings = [f"steps={STEPS}", "checkpoint.every=2", f"evaluation.every={STEPS}", "generators.count=1"]
    first = Run.launch(tiny_model, tmp_path, *settings)
    first.wait_for(lambda: any(tmp_path.glob("*/checkpoints/version-000002")), 500, "the first checkpoint")
    _kill_generator(first)
    first.wait_for(lambda: any(tmp_path.glob("*/checkpoints/version-000004")), 300, "the second checkpoint")
    for learner in first.descendants("LearnerActor"):
        learner.kill()
    assert first.end(200) == 1
    assert "learner" in first.summary.reason
    assert first.left_behind() == []
    folder = first.folder

    second = Run.resume(folder)
    assert second.end(500) == 0, second.output
    check_whole(second, folder, STEPS, resumes=1)

    recipe = folder / "recipe.yaml"
    recipe.write_text(recipe.read_text().replace(f"\nsteps: {STEPS}\n", f"\nsteps: {STEPS + 1}\n"))
    longer = Run.resume(folder)
    assert longer.end(500) == 0, longer.output
    check_whole(longer, folder, STEPS + 1, resumes=2)


def _kill_generator(run: Run) -> None:
    (generator,) = run.descendants("GeneratorActor")
    engine = generator.children(recursive=True)
    assert len(engine) >= 2, "the server that imports vLLM, and the engine that is forked from it"
    generator.kill()
    run.wait_for(lambda: not any(map(lives, engine)), 200, "the end of its engine")
    run.wait_for(lambda: "Its episodes are issued again, and generator-1 takes its place" in run.output, 200, "a successor")
    assert "died" in run.output
    run.wait_for(lambda: "generator-1 is up" in run.output, 300, "the successor coming up")


def check_whole(run: Run, folder: Path, steps: int, *, resumes: int) -> None:
    """Of a run that has completed after so many resumes, all is there that was trained, once."""
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
