"""What a recipe leaves to the machine is chosen for it, said, and kept."""

import json

import pytest
from msgspec.structs import replace

from asyncrl.core.errors import RecipeError
from asyncrl.core.recipe.decode import AUTOMATIC_KEYS
from asyncrl.run.folder.config_yaml import resolved_yaml
from asyncrl.run.models.model_shape import read_shape
from asyncrl.run.nodes.cluster_nodes import Nodes
from asyncrl.run.nodes.machine import Machine
from asyncrl.run.nodes.placement import Node
from asyncrl.run.recipe import automatic
from asyncrl.run.recipe.automatic import MICRO_BATCH_TOKENS
from asyncrl.run.recipe.compose import compose, compose_for

LAPTOP = Machine(memory=16 << 30, free=12 << 30, cores=2)


@pytest.fixture(autouse=True)
def share(monkeypatch):
    """What is measured of bfloat16, as a share of float32's time; on every machine the same."""
    share = [0.5]
    monkeypatch.setattr(automatic, "bfloat16_share", lambda shape: share[0])
    return share


def chosen(machine, *overrides):
    """The values chosen for the quickstart with overrides, by key."""
    recipe, choices = compose_for(machine, "quickstart", overrides)
    for choice in choices:
        section, name = choice.key.split(".")
        assert getattr(getattr(recipe, section), name) == choice.value
        assert choice.reason
    return {choice.key: choice.value for choice in choices}


@pytest.mark.parametrize(
    ("machine", "dtype"),
    [
        (LAPTOP, "float32"),
        (replace(LAPTOP, bfloat16=True), "bfloat16"),
        (replace(LAPTOP, gpus=2), "bfloat16"),
    ],
)
def test_engines_and_learner_compute_in_the_type_that_the_machine_is_fast_in(machine, dtype):
    found = chosen(machine)
    assert (found["generators.dtype"], found["learner.dtype"]) == (dtype, dtype)


@pytest.mark.parametrize(("measured", "dtype"), [(0.5, "bfloat16"), (0.95, "float32"), (1.3, "float32"), (None, "bfloat16")])
def test_instructions_for_bfloat16_are_used_where_they_are_measured_to_be_faster(share, measured, dtype):
    share[0] = measured
    found = chosen(replace(LAPTOP, bfloat16=True))
    assert (found["generators.dtype"], found["learner.dtype"]) == (dtype, dtype)
    assert chosen(replace(LAPTOP, bfloat16=True, gpus=2))["learner.dtype"] == "bfloat16", "of a GPU nothing is measured"
    assert chosen(LAPTOP)["learner.dtype"] == "float32", "without instructions neither"


def test_what_was_measured_is_said(share):
    share[0] = 0.953
    _, choices = compose_for(replace(LAPTOP, bfloat16=True), "quickstart")
    (reason,) = (choice.reason for choice in choices if choice.key == "generators.dtype")
    assert "take 0.95 times as long as in float32" in reason


def test_on_a_processor_the_learner_computes_in_float32_if_the_engines_are_told_to():
    assert chosen(replace(LAPTOP, bfloat16=True), "generators.dtype=float32")["learner.dtype"] == "float32"


def test_a_value_of_the_recipe_is_not_chosen():
    found = chosen(LAPTOP, "generators.dtype=bfloat16", "generators.max_running=24", "learner.data_parallel=auto")
    assert "generators.dtype" not in found
    assert "generators.max_running" not in found
    assert found["learner.data_parallel"] == 1


def test_engines_have_room_for_every_outstanding_episode_up_to_a_bound():
    assert chosen(LAPTOP, "buffer.pipeline_depth=0")["generators.max_running"] == 16 * 8
    assert chosen(LAPTOP, "buffer.pipeline_depth=1", "generators.count=2")["generators.max_running"] == 2 * 16 * 8 // 2
    assert chosen(LAPTOP, "buffer.max_staleness=2", "generators.count=2")["generators.max_running"] == 3 * 16 * 8 // 2
    assert chosen(LAPTOP, "buffer.pipeline_depth=1", "generators.count=3")["generators.max_running"] == 11 * 8
    assert chosen(LAPTOP, "batch.groups_per_step=64")["generators.max_running"] == 256
    assert chosen(LAPTOP, "batch.groups_per_step=64", "generators.data_parallel=2")["generators.max_running"] == 2 * 256
    assert chosen(LAPTOP, "batch.group_size=100")["generators.max_running"] == 200
    assert chosen(LAPTOP, "batch.group_size=300")["generators.max_running"] == 300


def test_the_cache_holds_every_episode_or_a_fifth_of_the_memory():
    wide = ("batch.groups_per_step=64", "model.max_context=1024", "generators.count=2")
    token = 2 * 2 * 2 * 32 * 4  # keys and values, two layers, two heads of 32, in float32
    assert chosen(LAPTOP, *wide)["generators.kv_cache_mb"] == 256 * 1024 * token // 2**20
    assert chosen(replace(LAPTOP, free=2 << 30), *wide)["generators.kv_cache_mb"] == 204


def test_few_cores_have_one_engine():
    assert chosen(LAPTOP)["generators.count"] == 1
    assert chosen(replace(LAPTOP, cores=4))["generators.count"] == 2


def test_a_micro_batch_holds_the_longest_episode(tmp_path):
    assert chosen(LAPTOP)["learner.micro_batch_tokens"] == MICRO_BATCH_TOKENS
    assert chosen(LAPTOP, "model.path=elsewhere", "model.max_context=20000")["learner.micro_batch_tokens"] == 20000


def test_ranks_share_out_the_experts_and_never_outnumber_the_groups():
    many = replace(LAPTOP, cores=32, free=64 << 30)
    assert chosen(many)["learner.data_parallel"] == 8
    assert chosen(many, "batch.groups_per_step=3")["learner.data_parallel"] == 3
    alone = ("algorithm.advantage={kind: gae}", "batch.group_size=1", "algorithm.minibatches=4")
    assert chosen(many, *alone)["learner.data_parallel"] == 4
    assert chosen(many, "learner.tensor_parallel=2")["learner.data_parallel"] == 4
    assert chosen(LAPTOP, "learner.expert_parallel=4")["learner.data_parallel"] == 4
    assert chosen(replace(many, gpus=8))["learner.data_parallel"] == 1


def test_a_learner_that_has_much_to_compute_gets_more_ranks_where_there_is_memory_for_them():
    long = "model.max_context=3200"
    assert chosen(LAPTOP)["learner.data_parallel"] == 1
    assert chosen(LAPTOP, long)["learner.data_parallel"] == 2
    assert chosen(LAPTOP, long, "learner.tensor_parallel=2")["learner.data_parallel"] == 1
    assert chosen(replace(LAPTOP, cores=1), long)["learner.data_parallel"] == 1
    assert chosen(replace(LAPTOP, cores=8), long)["learner.data_parallel"] == 4
    assert chosen(replace(LAPTOP, cores=8, free=4 << 30), long)["learner.data_parallel"] == 2
    assert chosen(replace(LAPTOP, free=2 << 30), long)["learner.data_parallel"] == 1
    assert chosen(cluster_of(16), long)["learner.data_parallel"] == 8
    assert chosen(LAPTOP, long, "model.path=elsewhere")["learner.data_parallel"] == 1, "nothing is known of the model"


@pytest.mark.parametrize("costly", [(), ("model.max_context=3200",)], ids=["usual", "costly"])
def test_more_cores_never_have_fewer_ranks(costly):
    ranks = [chosen(replace(LAPTOP, cores=cores, free=64 << 30), *costly)["learner.data_parallel"] for cores in range(1, 17)]
    assert ranks == sorted(ranks)
    assert ranks[-1] > 1


def test_three_cores_have_as_many_ranks_as_two():
    assert chosen(replace(LAPTOP, cores=3), "model.max_context=3200")["learner.data_parallel"] == 2


def mixture(folder, **sizes):
    """The folder of a model of 8 experts, of which a token has 2."""
    config = {
        "architectures": ["Qwen3MoeForCausalLM"],
        "hidden_size": 128,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "head_dim": 32,
        "intermediate_size": 384,
        "moe_intermediate_size": 384,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "vocab_size": 512,
        "max_position_embeddings": 4096,
    }
    (folder / "config.json").write_text(json.dumps(config | sizes))
    return folder


def test_a_token_costs_what_its_own_experts_cost(tmp_path):
    """The mixture's episode costs about as much as that of a dense model with the channels of two experts."""
    of_two = read_shape(str(mixture(tmp_path))).active_parameters
    dense = mixture(tmp_path, architectures=["Qwen3ForCausalLM"], num_experts=0, intermediate_size=2 * 384)
    assert of_two == read_shape(str(dense)).parameters + 4 * 8 * 128, "the routers of four layers beside"
    for experts, ranks in ((2, 1), (8, 2)):
        folder = mixture(tmp_path, num_experts_per_tok=experts, num_hidden_layers=2)
        found = chosen(LAPTOP, f"model.path={folder}", "model.max_context=1500")
        assert found["learner.data_parallel"] == ranks


def test_in_float32_less_is_much():
    between = "model.max_context=2300"
    assert chosen(LAPTOP, between)["learner.data_parallel"] == 2
    assert chosen(replace(LAPTOP, bfloat16=True), between)["learner.data_parallel"] == 1
    assert chosen(replace(LAPTOP, bfloat16=True), between, "learner.dtype=float32")["learner.data_parallel"] == 2


def cluster_of(*cores, memory=64 << 30):
    """A cluster of nodes without GPUs, of which the driver's is the first."""
    nodes = tuple(
        Node(str(number), f"10.0.0.{number}", has, has)
        for number, has in enumerate({"CPU": float(each), "memory": float(memory)} for each in cores)
    )
    return LAPTOP.in_cluster(Nodes(nodes, "0"))


def test_in_a_cluster_there_are_as_many_ranks_as_their_own_nodes_have_cores_for():
    def ranks(cluster, *overrides):
        return chosen(cluster, *overrides)["learner.data_parallel"]

    assert ranks(cluster_of(16)) == 4
    assert ranks(cluster_of(16, 16)) == 4, "all ranks go to one of the two"
    assert ranks(cluster_of(8, 32, 8)) == 2, "up to eight ranks fit on the driver's node, so that is where they go"
    assert ranks(cluster_of(8, 64, 8)) == 16, "that many do not"
    assert ranks(cluster_of(16, 16), "learner.placement.strategy=spread") == 8
    assert ranks(cluster_of(16, 16), "learner.placement.per_node=3") == 6
    assert ranks(cluster_of(16, 16), "learner.placement.strategy=spread", "learner.tensor_parallel=4") == 2
    assert ranks(cluster_of(2, 2, 2, 2, 2, 2)) == 1
    assert ranks(cluster_of(16), "learner.placement.resources={rack: 1}") == 1, "the plan refuses it, and says why"


def test_in_a_cluster_of_small_nodes_each_node_s_own_cores_count():
    long = ("model.max_context=3200", "learner.placement.strategy=spread")
    assert chosen(cluster_of(2, 2, 2), *long)["learner.data_parallel"] == 6
    assert chosen(cluster_of(3, 3), *long)["learner.data_parallel"] == 4


def test_in_a_cluster_further_ranks_leave_half_of_their_node_s_memory():
    def ranks(gib):
        return chosen(cluster_of(16, memory=gib << 30))["learner.data_parallel"]

    assert (ranks(64), ranks(5), ranks(2)) == (4, 3, 1)


def test_engines_have_the_gpus_that_the_learner_leaves():
    assert chosen(replace(LAPTOP, gpus=8), "learner.tensor_parallel=2")["generators.count"] == 6
    assert chosen(replace(LAPTOP, gpus=8), "generators.tensor_parallel=2")["generators.count"] == 3
    assert chosen(replace(LAPTOP, gpus=9), "generators={tensor_parallel: 2, data_parallel: 2}")["generators.count"] == 2
    assert chosen(replace(LAPTOP, gpus=7), "generators.engine={pipeline_parallel_size: 3}")["generators.count"] == 2
    assert chosen(replace(LAPTOP, gpus=1))["generators.count"] == 1


def test_every_key_that_may_be_auto_has_a_rule():
    of_gpus = {"learner.gpu", "generators.gpu_memory_share"}
    assert set(chosen(replace(LAPTOP, gpus=2))) == AUTOMATIC_KEYS - {"generators.kv_cache_mb"}
    assert set(chosen(LAPTOP)) == AUTOMATIC_KEYS - of_gpus, "what the machine has no use for is not told"


def test_what_was_chosen_is_written_down_and_kept_elsewhere(tmp_path):
    recipe, choices = compose_for(LAPTOP, "quickstart")
    assert choices
    written = tmp_path / "recipe.yaml"
    written.write_text(resolved_yaml(recipe))
    assert compose_for(replace(LAPTOP, cores=64, bfloat16=True), str(written)) == (recipe, ())


def test_only_keys_that_can_be_chosen_may_be_auto():
    with pytest.raises(RecipeError, match=r"learner.tensor_parallel: 'auto' does not fit; must be an integer >= 1"):
        compose("quickstart", ["learner.tensor_parallel=auto"])
    with pytest.raises(RecipeError, match=r"generators.dtype: 'int3' does not fit; .*float32, or auto"):
        compose("quickstart", ["generators.dtype=int3"])


def test_this_machine_is_found_out():
    machine = Machine.here()
    assert 0 < machine.free <= machine.memory
    assert machine.cores >= 1
