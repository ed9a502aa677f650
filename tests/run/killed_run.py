"""A small run that has completed is made longer, killed and resumed. Nothing finished is lost, nothing is trained twice."""

from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
from ended_run import STEPS
from whole_run import Run, lives

from asyncrl.run.summary import Status
from learners import checkpoints

LONGER = 24


def check_killed_and_resumed(folder: Path) -> None:
    """The run in ``folder`` ends as if it had not been killed twice: all of it, and its learner alone.

    And its only generator is killed beside that: another one takes its place, and nothing is left of its engine.
    """
    again = Run.resume(folder)
    assert again.end(60) == 2
    assert f"has completed its {STEPS} training steps, so there is nothing to resume" in again.output

    recipe = folder / "recipe.yaml"
    recipe.write_text(recipe.read_text().replace(f"\nsteps: {STEPS}\n", f"\nsteps: {LONGER}\n"))
    first = Run.resume(folder)
    _wait_for_checkpoint(first, folder, STEPS)
    first.kill()

    second = Run.resume(folder)
    _wait_for_checkpoint(second, folder, _newest(folder))
    _kill_generator(second)
    _wait_for_checkpoint(second, folder, _newest(folder))
    for learner in second.descendants("LearnerActor"):
        learner.kill()
    assert second.end(60) == 1
    assert "learner" in second.summary.reason
    assert second.left_behind() == []

    third = Run.resume(folder)
    assert third.end(300) == 0, third.output
    _check_whole(third, folder)


def _newest(folder: Path) -> int:
    newest = checkpoints.newest(folder / "checkpoints")
    assert newest is not None
    return newest[0]


def _wait_for_checkpoint(run: Run, folder: Path, version: int) -> None:
    """Until there is a checkpoint of a version after this one."""
    run.wait_for(lambda: _newest(folder) > version, 300, f"a checkpoint after that of version {version}")


def _kill_generator(run: Run) -> None:
    (generator,) = run.descendants("GeneratorActor")
    engine = generator.children(recursive=True)
    assert len(engine) >= 2, "the server that imports vLLM, and the engine that is forked from it"
    generator.kill()
    run.wait_for(lambda: not any(map(lives, engine)), 120, "the end of its engine")
    run.wait_for(lambda: "Its episodes are issued again, and generator-1 takes its place" in run.output, 120, "a successor")
    assert "died" in run.output
    run.wait_for(lambda: "generator-1 is up" in run.output, 120, "the successor coming up")


def _check_whole(run: Run, folder: Path) -> None:
    assert run.left_behind() == []
    summary = run.summary
    assert (summary.status, summary.steps, summary.resumes) == (Status.COMPLETED, LONGER, 3)
    assert summary.versions_published == LONGER
    ledger = summary.ledger
    assert (ledger.trained, ledger.running, ledger.committed, ledger.taken, ledger.failed) == (LONGER * 4, 0, 0, 0, 0)
    assert ledger.issued == ledger.trained + ledger.expired + ledger.filtered
    assert _tracked_steps(folder) == Counter(range(1, LONGER + 1))
    kept = pq.read_table(folder / "trajectories", columns=["kind", "step", "group_id", "sample_index"]).to_pylist()
    trained = Counter((row["step"], row["group_id"], row["sample_index"]) for row in kept if row["kind"] == "train")
    assert Counter(step for step, _, _ in trained) == dict.fromkeys(range(1, LONGER + 1), 16), "all of each step, once"
    assert set(trained.values()) == {1}


def _tracked_steps(folder: Path) -> Counter[int]:
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{folder.parent / 'mlflow.db'}")
    (experiment,) = client.search_experiments(filter_string="name = 'asyncrl'")
    (run,) = client.search_runs([experiment.experiment_id])
    return Counter(point.step for point in client.get_metric_history(run.info.run_id, "reward/mean"))
