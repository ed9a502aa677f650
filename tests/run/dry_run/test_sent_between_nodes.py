import pytest

from asyncrl.run.dry_run.sent_between_nodes import sent_between_nodes, sent_in_engines
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


def test_a_plan_says_what_it_costs_that_an_engine_is_on_several_nodes():
    shape, far = read_shape("tiny"), "generators.pools={far: {count: 1, tensor_parallel: 4, engine_nodes: 2, dtype: float32}}"
    assert not list(sent_in_engines(compose("quickstart"), shape))
    (said,) = sent_in_engines(compose("quickstart", [far]), shape)
    # the outputs of two parts of each layer, half of which comes from elsewhere, and the sum of the other half
    received, waits = 2000 * shape.num_hidden_layers * shape.hidden_size * 4, 2 * shape.num_hidden_layers
    amount = f"{received / 2**20:.0f} MiB"
    assert f"far is on 2 nodes: for 1,000 tokens, {amount} come to each, and each step waits {waits} times" in said
    staged = "generators.pools={far: {count: 1, engine_nodes: 2, engine: {pipeline_parallel_size: 2}}}"
    assert "waits 1 times" in next(sent_in_engines(compose("quickstart", [staged]), shape))
