"""Arguments of vLLM's engine that the user names are vLLM's own, and none that asyncrl needs as it is."""

import json

import pytest
import torch
from learner_samples import make_model
from safetensors.torch import save_file

from asyncrl.core.errors import RecipeError
from asyncrl.core.recipe.generators import GeneratorsConfig
from asyncrl.generators.vllm.engine_arguments import EngineSettings, check_engine_arguments, engine_arguments
from asyncrl.generators.vllm.engine_node import EngineNode


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("max_num_batched_token", r"vLLM's engine has no such argument; did you mean `max_num_batched_tokens`\?"),
        ("qqqqqqqq", "vLLM's engine has no such argument; see the engine arguments in vLLM's documentation"),
        ("dtype", "the recipe has a key of its own for it; set generators.pools.small.dtype"),
        ("load_format", "it cannot be changed: weights are only read from safetensors files, never unpickled; leave it out"),
        ("data_parallel_size", "the recipe has a key of its own for it; set generators.pools.small.data_parallel"),
        ("seed", "the recipe has a key of its own for it; set seed"),
        ("prefill_context_parallel_size", "it cannot be changed: GPUs that divide a prompt between them are not counted"),
        ("data_parallel_external_lb", "it cannot be changed: an engine and all its ranks are on the node where its generator is"),
        ("nnodes", r"the recipe has a key of its own for it; set generators\.pools\.small\.engine_nodes"),
        ("master_port", "it cannot be changed: the nodes of an engine find each other"),
        ("enable_eplb", "it cannot be changed: experts that move between workers would not be where a publication puts"),
        ("pipeline_parallel_size", r"'two' is not a number of pipeline stages; set it to an integer >= 1"),
    ],
)
def test_a_wrong_name_is_refused_with_what_would_be_right(name, told):
    with pytest.raises(RecipeError, match=rf"^generators\.pools\.small\.engine\.{name}: {told}"):
        check_engine_arguments({"max_num_batched_tokens": 1, name: "two"}, "generators.pools.small")


def test_the_users_arguments_win_over_ours_and_reach_the_engine():
    config = GeneratorsConfig(engine={"max_num_batched_tokens": 512, "block_size": 64, "enable_prefix_caching": False})
    check_engine_arguments(config.engine, "generators")
    arguments = engine_arguments(EngineSettings(config, "model", 128))
    assert (arguments.max_num_batched_tokens, arguments.block_size, arguments.enable_prefix_caching) == (512, 64, False)
    assert (arguments.max_model_len, arguments.enforce_eager) == (128, True)


def test_a_folder_with_mistrals_own_format_is_read_as_the_learner_reads_it(tmp_path):
    make_model(tmp_path, "mistral")
    (tmp_path / "params.json").write_text(json.dumps({"dim": 64, "n_layers": 8, "n_heads": 4, "vocab_size": 96}))
    save_file({"norm.weight": torch.ones(4)}, tmp_path / "consolidated.safetensors")
    config = engine_arguments(EngineSettings(GeneratorsConfig(kv_cache_mb=64), str(tmp_path), 32)).create_model_config()
    assert config.hf_config.num_hidden_layers == json.loads((tmp_path / "config.json").read_text())["num_hidden_layers"]


def test_the_workers_of_an_engine_on_a_cpu_share_its_cache_and_its_cores():
    alone, divided = (
        engine_arguments(EngineSettings(GeneratorsConfig(tensor_parallel=workers), "model", 128)) for workers in (1, 2)
    )
    assert (alone.tensor_parallel_size, divided.tensor_parallel_size) == (1, 2)
    assert alone.kv_cache_memory_bytes == 2 * divided.kv_cache_memory_bytes
    assert divided.distributed_executor_backend == "asyncrl.generators.vllm.cpu.engine_queues.NamelessQueuesExecutor"
    assert alone.distributed_executor_backend != divided.distributed_executor_backend


def test_an_engine_on_a_cpu_yields_only_if_told_to():
    settings = [
        engine_arguments(EngineSettings(GeneratorsConfig(), "model", 128, yields=yields)).additional_config
        for yields in (False, True)
    ]
    assert [each["asyncrl_yields"] for each in settings] == [False, True]
    assert settings[0]["asyncrl_threads"] == settings[1]["asyncrl_threads"]


def test_the_ranks_of_an_engine_share_its_episodes_and_its_cache():
    pools = [GeneratorsConfig(tensor_parallel=2, data_parallel=ranks, max_running=9) for ranks in (1, 2)]
    one, two = (engine_arguments(EngineSettings(pool, "model", 128)) for pool in pools)
    assert (one.data_parallel_size, two.data_parallel_size) == (1, 2)
    assert (one.max_num_seqs, two.max_num_seqs) == (9, 5), "each rank gets half of the episodes, as nearly as can be"
    assert one.kv_cache_memory_bytes == 2 * two.kv_cache_memory_bytes


def test_what_cannot_be_done_on_a_cpu_is_refused():
    with pytest.raises(RecipeError, match=r"^generators\.engine\.pipeline_parallel_size: it cannot be used on a CPU"):
        engine_arguments(EngineSettings(GeneratorsConfig(engine={"pipeline_parallel_size": 2}), "model", 128))
    drafts = {"method": "ngram", "num_speculative_tokens": 4}
    with pytest.raises(RecipeError, match=r"^generators\.engine\.speculative_config: it cannot be used on a CPU"):
        engine_arguments(EngineSettings(GeneratorsConfig(engine={"speculative_config": drafts}), "model", 128))


@pytest.mark.parametrize(("rank", "backend"), [("512", "CPU_MLA"), ("null", None)])
def test_latent_attention_has_the_kernel_that_takes_publications(tmp_path, rank, backend):
    (tmp_path / "config.json").write_text(f'{{"kv_lora_rank": {rank}}}')
    assert engine_arguments(EngineSettings(GeneratorsConfig(), str(tmp_path), 128)).attention_backend == backend


def test_the_nodes_of_an_engine_are_told_of_each_other_and_share_its_workers():
    config = GeneratorsConfig(tensor_parallel=2, engine_nodes=2, kv_cache_mb=64)
    first, further = (
        engine_arguments(EngineSettings(config, "model", 128, node=EngineNode(number, 2, "10.0.0.1", 7))) for number in (0, 1)
    )
    assert (first.nnodes, first.node_rank, further.node_rank) == (2, 0, 1)
    assert {(each.master_addr, each.master_port) for each in (first, further)} == {("10.0.0.1", 7)}
    assert first.kv_cache_memory_bytes == further.kv_cache_memory_bytes == 32 << 20
