import pytest

from asyncrl.run.models.model_shape import read_shape
from asyncrl.run.plan.kept_steps import kept_steps
from asyncrl.run.recipe.compose import compose

SMALL = ["batch.groups_per_step=2", "batch.group_size=4", "model.max_context=256"]


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["steps=100", "checkpoint.every=10"], "the last 20 steps of the run: 2 checkpoints"),
        (["steps=95", "checkpoint.every=10"], "the last 15 steps of the run: 2 checkpoints"),
        (["steps=15", "checkpoint.every=10"], "the last 15 steps of the run: 2 checkpoints"),
        (["steps=5", "checkpoint.every=10"], "the last 5 steps of the run: 1 checkpoint of"),
        (["steps=100", "checkpoint.every=10", "buffer.journal.keep=100"], "the last 100 steps of the run"),
        (["steps=100", "checkpoint.every=10", "buffer.journal.keep=99"], "the batches of at most 99 steps"),
        (["buffer.journal={kind: none}"], "nothing: there is no journal"),
    ],
)
def test_what_is_kept_is_said_with_its_size(overrides: list[str], said: str):
    recipe = compose("quickstart", [*SMALL, *overrides])
    assert said in kept_steps(recipe, read_shape("tiny"))
