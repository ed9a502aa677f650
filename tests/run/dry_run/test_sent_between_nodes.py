import pytest

from asyncrl.run.dry_run.sent_between_nodes import sent_between_nodes
from asyncrl.run.models.model_shape import read_shape
from asyncrl.run.nodes.process_kinds import learner_part
from asyncrl.run.recipe.compose import compose

FOUR = ["learner.tensor_parallel=2", "learner.pipeline_parallel=2", "learner.micro_batch_tokens=1000"]


@pytest.mark.parametrize(
    ("ranks_on", "said"),
    [
        ((), False),
        (("a", "a", "b", "b"), False),
        (("a", "b", "a", "b"), True),
    ],
)
def test_a_plan_says_what_it_costs_to_divide_layers_between_nodes(ranks_on: tuple[str, ...], said: bool):
    recipe, shape = compose("quickstart", [*FOUR, "learner.dtype=float32"]), read_shape("tiny")
    # five gatherings or scatterings in two parts of each layer of a stage, each of the other rank's half of the tokens
    received = 2 * 5 * (shape.num_hidden_layers // 2) * 500 * shape.hidden_size * 4
    told = sent_between_nodes(recipe, shape, ranks_on)
    assert (told is not None) == said
    assert told is None or f"each receives {received / 2**20:.0f} MiB in a full micro-batch" in told


@pytest.mark.parametrize(("nodes", "together"), [("one", 2), ("several", 1)])
def test_ranks_of_a_layer_are_on_one_node_unless_the_recipe_says_otherwise(nodes: str, together: int):
    recipe = compose("quickstart", [*FOUR, f"learner.tensor_parallel_nodes={nodes}"])
    assert learner_part(recipe.learner, on_gpus=True).together == together
