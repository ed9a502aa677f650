import pytest
from broken_folders import ROOMY

from asyncrl.run.dry_run.disk_of_kept_steps import kept_steps
from asyncrl.run.dry_run.plan import make_plan
from asyncrl.run.models.model_shape import read_shape
from asyncrl.run.recipe.compose import compose

SMALL = ["batch.groups_per_step=2", "batch.group_size=4", "model.max_context=256"]


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["steps=100", "checkpoint.every=10"], "the last 10 training steps: 2 checkpoints"),
        (["steps=95", "checkpoint.every=10"], "the last 5 training steps: 2 checkpoints"),
        (["steps=15", "checkpoint.every=10"], "the last 5 training steps: 2 checkpoints"),
        (["steps=5", "checkpoint.every=10"], "no training step: 1 checkpoint of"),
        (["steps=100", "checkpoint.every=10", "buffer.journal.keep=100"], "all 100 training steps: 2 checkpoints"),
        (["steps=100", "checkpoint.every=10", "buffer.journal.keep=99"], "the batches of at most 99 steps"),
        (["buffer.journal={kind: none}"], "nothing: there is no journal"),
    ],
)
def test_what_is_kept_is_said_with_its_size(overrides: list[str], said: str):
    recipe = compose("quickstart", [*SMALL, *overrides])
    assert said in kept_steps(recipe, read_shape("tiny"))


@pytest.mark.parametrize(
    "overrides",
    [
        ["steps=5", "checkpoint.every=10"],
        ["steps=15", "checkpoint.every=10", "checkpoint.keep=1"],
        ["steps=2", "checkpoint.every=10", "checkpoint.keep=1"],
    ],
)
def test_what_would_have_steps_kept_is_said_where_none_is(overrides: list[str]):
    recipe = [*SMALL, *overrides, "buffer.journal.keep=1"]
    (said,) = (
        each for each in make_plan(compose("quickstart", recipe), ROOMY).remarks if "the run keeps no training step" in each
    )
    some, every = said.rpartition("; set ")[2].split(", or ")
    for remedy, kept in ((some.split(" "), "the last"), ([every.removesuffix(" for all")], "all")):
        (said,) = (
            each for each in make_plan(compose("quickstart", [*recipe, *remedy]), ROOMY).remarks if "the run keeps" in each
        )
        assert f"the run keeps {kept}" in said
        assert "; set " not in said


LARGER = ["steps=100", "checkpoint.every=20", "batch.groups_per_step=32", "batch.group_size=4", "model.max_context=256"]


@pytest.mark.parametrize(
    ("recipe", "overrides", "said"),
    [
        ("quickstart", [], "2 checkpoints of about 5 MiB, and the batches of at most 40 steps, which are at most 11 MiB"),
        ("quickstart", ["+algorithm.teacher={path: t}"], "at most 16 MiB"),
        ("quickstart", ["algorithm.advantage={kind: gae}"], "2 checkpoints of about 10 MiB"),
        ("agent", ["environment.max_trajectories=3"], "at most 34 MiB"),
    ],
)
def test_trajectories_teachers_and_critics_take_more(recipe: str, overrides: list[str], said: str):
    assert said in kept_steps(compose(recipe, [*LARGER, *overrides]), read_shape("tiny"))
