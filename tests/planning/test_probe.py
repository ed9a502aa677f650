"""A probe changes a recipe so that its rules still hold, counts its time from the first training step, and says what failed."""

from pathlib import Path

import msgspec
import pytest
from test_fit_run import made_run

from asyncrl.core.errors import RecipeError
from asyncrl.planning import probe as probing
from asyncrl.planning.probe import keys_of, probe, with_keys
from asyncrl.planning.rate_sources import basis_from
from asyncrl.run.recipe.compose import compose


@pytest.mark.parametrize(
    "overrides",
    [
        (),
        ("learner.warmup_steps=20",),
        ("tracking.trajectories={keep: sample, count: 16}",),
        ("tracking.trajectories={keep: all, dir: 's3://bucket/kept'}",),
        ("tracking.trajectories={keep: none}",),
        ("+tracking.trajectories.keep=sample", "tracking.trajectories.count=16"),
        ("batch.groups_per_step=32", "algorithm.minibatches=16"),
        ("generators.count=3", "tune={knobs: {generators.count: [2, 4]}}"),
        ("algorithm.advantage={kind: gae, critic_warmup_steps: 12}",),
        (
            *("algorithm.advantage={kind: gae}", "batch.group_size=1", "batch.groups_per_step=32"),
            *("algorithm.minibatches=4", "learner.data_parallel=3"),
        ),
    ],
)
def test_what_a_probe_changes_keeps_the_rules_of_a_recipe(overrides: tuple[str, ...], tmp_path: Path):
    recipe = compose("quickstart", [f"run_dir={tmp_path}", *overrides])
    probed = compose("quickstart", with_keys(overrides, keys_of(recipe)))
    assert probed.steps == probing.STEPS
    assert probed.batch.groups_per_step == max(4, recipe.batch.groups_per_step // 4, recipe.fewest_groups)
    assert getattr(probed.tracking.trajectories, "dir", "") is None
    assert probed.tune is None


def test_a_probe_is_made_beside_the_runs_whatever_their_folder_is_called(tmp_path: Path):
    recipe = msgspec.structs.replace(compose("quickstart"), run_dir=str(tmp_path / "a,b='c' \\d"))
    assert compose("quickstart", with_keys((), keys_of(recipe))).run_dir == recipe.run_dir


def launching(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a script take the place of ``asyncrl launch``."""
    launch = folder / "launch"
    launch.write_text(f"#!/bin/sh\nmkdir {folder}/quickstart-probe-1\n{script}\n")
    launch.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(launch))


def test_a_probe_that_fails_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    launching(tmp_path, "echo no memory is left; exit 1", monkeypatch)
    with pytest.raises(RecipeError, match=r"(?s)failed:\nno memory is left.*asyncrl logs .*quickstart-probe-1"):
        probe(compose("quickstart", [f"run_dir={tmp_path}"]), "quickstart", (), lambda text: None)


@pytest.mark.parametrize(("starts", "first_step"), [(60, True), (2, False)])
def test_the_time_of_a_probe_counts_from_its_first_training_step(
    starts: float, first_step: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    for name, seconds in (("STARTING_S", starts), ("MOST_S", 1.0), ("_LOOK_S", 0.05)):
        monkeypatch.setattr(probing, name, seconds)
    begins = f"sleep 3; touch {tmp_path}/quickstart-probe-1/measures.jsonl" if first_step else ""
    launching(tmp_path, f"{begins}\nexec sleep 300", monkeypatch)
    found = probe(compose("quickstart", [f"run_dir={tmp_path}"]), "quickstart", (), lambda text: None)
    assert (found / "measures.jsonl").exists() is first_step


def test_a_probe_of_too_few_steps_names_a_longer_run(tmp_path: Path):
    run = made_run(tmp_path, steps=4).path
    with pytest.raises(RecipeError, match=r"--probe: .*has 2 training steps.*; launch a longer run, .*steps=20.*--from RUN"):
        basis_from(compose("quickstart"), run=None, file=None, name="", probe=lambda recipe: run)
