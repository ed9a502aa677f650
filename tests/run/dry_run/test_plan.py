import io
import json
import re
from pathlib import Path

import msgspec
import pytest
from model_folders import SMALL, write_model
from planned import GPT_OSS, MOONLIGHT, QWEN3_0_6B, QWEN3_30B_A3B, ROOMY
from rich.console import Console

from asyncrl.core.errors import RecipeError
from asyncrl.core.recipe.rules.inert import inert
from asyncrl.generators.vllm import vllm_parsers
from asyncrl.run.dry_run.plan import make_plan
from asyncrl.run.dry_run.plan_view import plan_view
from asyncrl.run.models.model_shape import CPU_HEAD_SIZES, CPU_LATENT_SIZES, read_shape
from asyncrl.run.nodes.machine import Machine
from asyncrl.run.recipe.compose import compose


@pytest.fixture
def model(tmp_path: Path) -> str:
    write_model(tmp_path, QWEN3_0_6B)
    return f"model.path={tmp_path}"


def test_the_arithmetic_of_a_batch():
    plan = make_plan(
        compose(
            "quickstart",
            [
                "batch.groups_per_step=6",
                "batch.group_size=4",
                "buffer.pipeline_depth=2",
                "generators.count=2",
                "generators.max_running=32",
                "steps=10",
            ],
        ),
        ROOMY,
    )
    assert plan.episodes_per_step == 24
    assert plan.episodes_in_all == 240
    assert plan.outstanding_groups == 18
    assert plan.running_episodes == 64


@pytest.mark.parametrize(
    "bounded", [["steps=2"], ["buffer.capacity_mb=64"]], ids=["by what the run trains", "by what may be held at once"]
)
def test_the_buffer_holds_no_more_than_it_may_however_far_ahead_engines_could_be(bounded: list[str]):
    far = ["buffer.max_staleness=1000000", "batch.groups_per_step=6", "batch.group_size=4", "generators.count=2", *bounded]
    (buffer,) = (process for process in make_plan(compose("quickstart", far), ROOMY).processes if process.role == "buffer")
    assert buffer.each_bytes < (300 << 20) + 64_000_001


def test_the_ranks_that_divide_one_of_a_model_s_numbers_must_divide_all_of_them():
    with pytest.raises(RecipeError, match=r"3 does not divide the model's 4 attention heads; choose a divisor of 2$"):
        make_plan(compose("quickstart", ["learner.tensor_parallel=3"]), ROOMY)
    make_plan(compose("quickstart", ["learner.tensor_parallel=2"]), ROOMY)


def test_processes_are_counted():
    recipe = compose("quickstart", ["generators.count=3", "learner.data_parallel=2", "learner.pipeline_parallel=2"])
    plan = make_plan(recipe, ROOMY)
    assert {process.role: process.count for process in plan.processes} == {
        "driver": 1,
        "Ray": 1,
        "generator": 3,
        "buffer": 1,
        "learner": 4,
    }
    assert plan.total_bytes == sum(process.count * process.each_bytes for process in plan.processes)


def test_parameters_are_read_from_the_model_s_config(model):
    shape = read_shape(model.removeprefix("model.path="))
    # The published model has 596,049,920 parameters, norms included.
    assert shape.parameters == pytest.approx(596_049_920, rel=1e-3)
    assert shape.cache_bytes(2) == 28 * 8 * 128 * 2 * 2


@pytest.mark.parametrize(
    ("change", "key", "problem"),
    [
        ({"num_key_value_heads": 3}, "tensor_parallel", "2 does not divide the model's 3 key-value heads"),
        ({"vocab_size": 151937}, "tensor_parallel", "2 does not divide the model's 151937 vocabulary entries"),
        ({"intermediate_size": 3071}, "tensor_parallel", "the model's 3071 feed-forward channels"),
        ({"num_hidden_layers": 27}, "pipeline_parallel", "2 does not divide the model's 27 layers"),
    ],
)
def test_a_model_that_the_ranks_cannot_divide_is_refused_before_anything_starts(tmp_path, change, key, problem):
    (tmp_path / "config.json").write_text(json.dumps(QWEN3_0_6B | change))
    with pytest.raises(RecipeError) as caught:
        make_plan(compose("quickstart", [f"model.path={tmp_path}", f"learner.{key}=2"]), ROOMY)
    assert caught.value.place == f"learner.{key}"
    assert problem in caught.value.problem


def test_memory_grows_with_the_model_and_shrinks_with_ranks(model):
    def learner_bytes(*overrides: str) -> int:
        plan = make_plan(compose("quickstart", overrides), ROOMY)
        return next(process.each_bytes for process in plan.processes if process.role == "learner")

    assert learner_bytes(model) > learner_bytes() + 596e6 * 16
    assert learner_bytes(model, "learner.tensor_parallel=2") < learner_bytes(model) * 0.6
    assert learner_bytes(model, "learner.data_parallel=2") < learner_bytes(model)
    assert learner_bytes(model, "+learner.lora={rank: 16}") < learner_bytes(model) - 580e6 * 12


@pytest.mark.parametrize(
    ("targets", "ends"),
    [
        ("", [(1024, 2048), (1024, 1024), (1024, 1024), (2048, 1024), (1024, 3072), (1024, 3072), (3072, 1024)]),
        (", targets: [v_proj, q_proj, v_proj]", [(1024, 2048), (1024, 1024)]),
    ],
)
def test_adapters_are_counted(model, targets, ends):
    recipe = compose("quickstart", [model, f"+learner.lora={{rank: 16{targets}}}"])
    expected = 28 * sum(16 * inputs + outputs * 16 for inputs, outputs in ends)
    assert read_shape(recipe.model.path).adapter_parameters(recipe.learner.lora) == expected


@pytest.mark.parametrize(
    "override", ["+model.chat_template_kwargs={enable_thinking: false}", "+model.chat_template='{{ messages }}'"]
)
def test_the_tiny_model_keeps_its_own_template(override):
    with pytest.raises(RecipeError, match="is warmed up with a template of its own"):
        make_plan(compose("quickstart", [override, "model.tool_parser=hermes"]), ROOMY)


def test_remarks_on_what_is_probably_not_meant(model):
    roomy = make_plan(compose("quickstart", ["generators.kv_cache_mb=1024"]), ROOMY)
    assert roomy.remarks == ()
    (cramped,) = make_plan(compose("quickstart", ["generators.kv_cache_mb=1024"]), Machine(2 << 30, 1 << 30, 2)).remarks
    assert "1.0 GiB are free" in cramped
    (idle,) = make_plan(
        compose(
            "quickstart",
            ["batch.groups_per_step=1", "generators.count=3", "buffer.pipeline_depth=1", "generators.kv_cache_mb=1024"],
        ),
        ROOMY,
    ).remarks
    assert "some engines never have work" in idle
    (preempted,) = make_plan(compose("quickstart", [model, "generators.kv_cache_mb=64"]), ROOMY).remarks
    assert "preempts some; raise generators.kv_cache_mb" in preempted
    # An engine on a GPU takes its cache from its share of the GPU's memory, whatever kv_cache_mb says.
    on_gpus = msgspec.structs.replace(ROOMY, gpus=2, gpu_memory=80 << 30)
    there = [model, "learner.dtype=bfloat16"]
    assert make_plan(compose("quickstart", [*there, "generators.kv_cache_mb=64"]), on_gpus).remarks == ()
    shared = [*there, "generators.gpu_memory_share=0.02", "generators.max_running=64"]
    (small,) = make_plan(compose("quickstart", [*shared, "generators.dtype=bfloat16"]), on_gpus).remarks
    assert "preempts some; raise generators.gpu_memory_share" in small
    (none,) = make_plan(compose("quickstart", [*shared, "generators.dtype=float32"]), on_gpus).remarks
    assert (
        "0.02 of 1 x 80.0 GiB does not hold the model's weights in float32 and an episode of 256 tokens: vLLM will not start"
        in none
    )
    divided = ["generators.kv_cache_mb=1024", "learner.context_parallel=2"]
    (repeated,) = make_plan(compose("quickstart", divided), ROOMY).remarks
    assert "with learner.context_parallel 2 the prompt that a group shares is computed once for each of its rows" in repeated


def test_a_cache_that_cannot_hold_one_episode_is_refused(model):
    """Qwen3-0.6B takes 112 KiB of it for a token in bfloat16, 28 MiB for the quickstart's 256."""
    bfloat16 = [model, "generators.dtype=bfloat16"]
    make_plan(compose("quickstart", [*bfloat16, "generators.kv_cache_mb=28"]), ROOMY)
    for override, place in (
        ("generators.kv_cache_mb=27", "generators"),
        ("generators={kv_cache_mb: 28, pools: {more: {count: 1, kv_cache_mb: 27}}}", "more"),
    ):
        with pytest.raises(RecipeError, match=rf"{place}\.kv_cache_mb: 27 MiB .* 256 tokens; set it to at least 28"):
            make_plan(compose("quickstart", [*bfloat16, override]), ROOMY)


def test_the_plan_says_what_cannot_act():
    def shown(*overrides: str) -> str:
        recipe = compose("quickstart", overrides)
        console = Console(file=io.StringIO(), width=1000, _environ={})
        console.print(plan_view(make_plan(recipe, ROOMY), recipe))
        return console.file.getvalue()

    decoupled = ["algorithm.loss={kind: ppo_clip}", "algorithm.correction={anchor: proximal_recomputed, weight: token}"]
    one_step = [*decoupled, "+algorithm.minibatches=1", "+algorithm.epochs=1"]
    assert shown(*one_step).count("Note: algorithm.loss.clip_low, algorithm.loss.clip_high cannot act") == 1
    assert "cannot act" not in shown(*decoupled, "+algorithm.minibatches=2")
    assert "cannot act" not in shown()


def test_the_plan_says_what_a_turn_keeps_that_the_recipe_ends(tmp_path):
    recipe = compose("quickstart", [f"model.path={write_model(tmp_path, SMALL)}", "+sampling.stop=['</answer>', 3]"])
    console = Console(file=io.StringIO(), width=1000, _environ={})
    console.print(plan_view(make_plan(recipe, ROOMY), recipe))
    said = "'</answer>' or token 3; what was sampled up to there is kept, trained and read by the environment"
    assert said in console.file.getvalue()
    for path in (tmp_path, "tiny"):
        unknown = compose("quickstart", [f"model.path={path}", "+sampling.stop=[99999]"])
        with pytest.raises(RecipeError, match="there is no token 99999: the model has"):
            make_plan(unknown, ROOMY)
    for wrong in ("['']", "[-1]", "[1.5]", "'</answer>'"):
        with pytest.raises(RecipeError, match=r"sampling\.stop"):
            compose("quickstart", [f"+sampling.stop={wrong}"])


@pytest.mark.parametrize(
    ("start", "said"),
    [
        ("", "knows <think>, and no reasoning parser is set"),
        ("{% if enable_thinking is defined %}{% endif %}", "or switch thinking off (model.chat_template_kwargs={enable_thinking"),
        ("<think>\\n\\n</think>\\n\\n", ""),
        ("<think>\\n", "no reasoning parser is set"),
    ],
)
def test_a_model_that_may_think_aloud_is_remarked_on(tmp_path, start, said):
    folder = write_model(tmp_path, SMALL)
    file = folder / "chat_template.jinja"
    begun = "{%- if add_generation_prompt -%}{{- '" + start + "' -}}{%- endif -%}" if "%" not in start else start
    file.write_text(file.read_text() + begun + "{# <think> #}")
    remarks = make_plan(compose("quickstart", [f"model.path={folder}"]), ROOMY).remarks
    assert [said in each for each in remarks if "reasoning" in each] == ([True] if said else [])


@pytest.mark.parametrize("parser", ["auto", "qwen3_json", "qwen3_coder", "pythonic"])
def test_a_parser_of_other_calls_than_the_template_teaches_is_remarked_on(tmp_path, parser):
    folder = write_model(tmp_path, SMALL)
    remarks = make_plan(compose("quickstart", [f"model.path={folder}", f"model.tool_parser={parser}"]), ROOMY).remarks
    expected = [f"{parser} reads other calls than those of hermes"] if parser in ("qwen3_coder", "pythonic") else []
    assert [each.partition(",")[0].partition(": ")[2] for each in remarks if "other calls" in each] == expected


@pytest.mark.parametrize("overrides", [["algorithm.loss={kind: ppo_clip}"], ["+correction=far"], ["algorithm.loss={kind: dppo}"]])
def test_what_the_plan_says_to_set_can_be_set_on_the_command_line(overrides):
    decoupled = ["algorithm.correction.anchor=proximal_recomputed", "algorithm.correction.weight=token"]
    overrides = [*overrides, *decoupled, "algorithm.minibatches=1", "algorithm.epochs=1"]
    said = inert(compose("quickstart", overrides))
    for remedy in said.split("; set ")[1].split(", or "):
        changes = remedy.removesuffix(" (as published)").split()
        assert inert(compose("quickstart", [*overrides, *changes])) is None


def test_attention_that_engines_on_a_cpu_cannot_compute_is_refused_there(tmp_path):
    write_model(tmp_path, QWEN3_0_6B | {"head_dim": 48})
    recipe = compose("quickstart", [f"model.path={tmp_path}"])
    with pytest.raises(RecipeError, match=r"model\.path: the model's attention heads have 48 channels.*only 32, 64, "):
        make_plan(recipe, ROOMY)
    make_plan(recipe, msgspec.structs.replace(ROOMY, gpus=4))


def test_the_sizes_of_attention_heads_are_vllm_s():
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend

    assert list(CPU_HEAD_SIZES) == CPUAttentionBackend.get_supported_head_sizes()


def test_gpt_oss_is_taken_on_cpus_without_replay(tmp_path):
    write_model(tmp_path, GPT_OSS)
    recipe, replayed = (
        compose("quickstart", [f"model.path={tmp_path}", "model.max_context=512", f"learner.experts.replay={replay}"])
        for replay in ("false", "true")
    )
    make_plan(recipe, ROOMY)
    with pytest.raises(RecipeError, match=r"on a GPU, publications do not reach vLLM's GptOssForCausalLM"):
        make_plan(recipe, msgspec.structs.replace(ROOMY, gpus=4))
    with pytest.raises(RecipeError, match=r"learner\.experts\.replay: the experts that vLLM says it chose"):
        make_plan(replayed, ROOMY)
    half = msgspec.structs.replace(recipe, generators=msgspec.structs.replace(recipe.generators, dtype="float16"))
    with pytest.raises(RecipeError, match=r"generators\.dtype: in float16, vLLM on a CPU keeps a copy of the sinks"):
        make_plan(half, ROOMY)


def test_latent_attention_is_taken_on_a_cpu_in_the_sizes_of_its_kernel(tmp_path):
    from vllm.v1.attention.backends.mla.cpu_mla import CPUMLABackend

    assert [sum(CPU_LATENT_SIZES)] == CPUMLABackend.get_supported_head_sizes()
    recipe = compose("quickstart", [f"model.path={tmp_path}", "learner.dtype=bfloat16", "model.max_context=512"])
    write_model(tmp_path, MOONLIGHT | {"kv_lora_rank": 256})
    with pytest.raises(RecipeError, match=r"kv_lora_rank and qk_rope_head_dim are 256 and 64, .* computes only 512 and 64"):
        make_plan(recipe, ROOMY)
    write_model(tmp_path, MOONLIGHT)
    make_plan(recipe, ROOMY)
    replayed = compose("quickstart", [f"model.path={tmp_path}", "learner.experts.replay=true", "model.max_context=512"])
    with pytest.raises(RecipeError, match=r"learner\.experts\.replay: with latent attention, vLLM on a CPU keeps no prefixes"):
        make_plan(replayed, ROOMY)


@pytest.mark.parametrize(
    ("override", "place"),
    [
        ("model.path=nowhere", "model.path"),
        ("learner.tensor_parallel=3", "learner.tensor_parallel"),
        ("generators.tensor_parallel=3", "generators.tensor_parallel"),
        ("generators.data_parallel=2", "generators.data_parallel"),
        ("+generators.pools.exam={count: 1, data_parallel: 2}", "generators.pools.exam.data_parallel"),
        ("learner.pipeline_parallel=3", "learner.pipeline_parallel"),
        ("learner={pipeline_parallel: 2, virtual_pipeline: 3}", "learner.virtual_pipeline"),
        ("learner={data_parallel: 2, expert_parallel: 2}", "learner.expert_parallel"),
        ("environment.name=calculater", "environment.name"),
    ],
)
def test_what_does_not_go_together_is_refused(model, override, place):
    with pytest.raises(RecipeError) as caught:
        make_plan(compose("quickstart", [model, override]), ROOMY)
    assert caught.value.place == place


def test_a_context_beyond_the_model_s_is_refused(model):
    recipe = compose("quickstart", [model, "model.max_context=50000", "learner.micro_batch_tokens=50000"])
    with pytest.raises(RecipeError, match="at most 40960"):
        make_plan(recipe, ROOMY)


def test_a_config_that_is_no_model_s_is_refused(tmp_path):
    (tmp_path / "config.json").write_text('{"hidden_size": "many"}')
    with pytest.raises(RecipeError, match=r"cannot read .*config\.json"):
        make_plan(compose("quickstart", [f"model.path={tmp_path}"]), ROOMY)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"decoder_sparse_step": 0}, r"`int` >= 1 - at `\$.decoder_sparse_step`"),
        ({"num_hidden_layers": 0}, "num_hidden_layers"),
        ({"num_attention_heads": 0}, "num_attention_heads"),
        ({"hidden_size": -64}, "hidden_size"),
        ({"num_experts": -8}, "num_experts"),
        ({"num_experts_per_tok": 129}, "num_experts_per_tok 129, and a layer has 128 experts"),
        ({"num_experts_per_tok": 0}, "num_experts_per_tok 0"),
        ({"num_experts_per_tok": -1}, "num_experts_per_tok -1"),
        ({"num_experts": 0}, "no num_experts, or 0"),
        ({"moe_intermediate_size": 0}, "no moe_intermediate_size, or 0"),
        ({"architectures": ["Gemma2ForCausalLM"]}, "architecture Gemma2ForCausalLM is not supported; supported are "),
        ({"architectures": None}, "architecture none"),
    ],
)
def test_a_model_that_the_learner_does_not_take_is_refused(tmp_path, change, told):
    (tmp_path / "config.json").write_text(json.dumps(QWEN3_30B_A3B | change))
    with pytest.raises(RecipeError, match=told) as caught:
        make_plan(compose("quickstart", [f"model.path={tmp_path}"]), ROOMY)
    assert caught.value.place == "model.path"


def test_what_no_machine_holds_is_said_with_what_it_would_hold():
    recipe = compose("quickstart", ["generators.count=200"])
    plan = make_plan(recipe, ROOMY)
    said = [remark for remark in plan.remarks if "cannot hold" in remark]
    assert len(said) == 1, plan.remarks
    fitting = int(re.search(r"lower generators.count to (\d+)", said[0])[1])
    assert f"{plan.total_bytes / 2**30:.1f} GiB, and this machine has 64.0 GiB in all" in said[0]
    assert make_plan(compose("quickstart", [f"generators.count={fitting}"]), ROOMY).total_bytes <= ROOMY.memory
    assert make_plan(compose("quickstart", [f"generators.count={fitting + 1}"]), ROOMY).total_bytes > ROOMY.memory
    tiny = msgspec.structs.replace(ROOMY, memory=1 << 30, free=1 << 29)
    (none_fits,) = (remark for remark in make_plan(compose("quickstart"), tiny).remarks if "cannot hold" in remark)
    assert "take a smaller model" in none_fits
    pools = compose("quickstart", ["+generators.pools={judge: {count: 30, kv_cache_mb: 4000}}"])
    (of_pool,) = (remark for remark in make_plan(pools, ROOMY).remarks if "cannot hold" in remark)
    assert re.search(r"lower generators\.pools\.judge\.count to \d+, generators\.pools\.judge\.kv_cache_mb", of_pool)
    assert "generators.count" not in none_fits


def test_a_tool_parser_that_vllm_has_not_is_refused_with_those_it_has(monkeypatch):
    """What plug-ins of vLLM add is left out: listing it takes many seconds, and tests of the generators do."""
    monkeypatch.setattr(vllm_parsers, "_all", lambda kind: frozenset())
    with pytest.raises(RecipeError, match=r"no tool parser 'nonsense'; use one of .*hermes.*, llama3_json") as caught:
        make_plan(compose("quickstart", ["model.tool_parser=nonsense"]), ROOMY)
    assert caught.value.place == "model.tool_parser"


def test_the_view_tells_processes_memory_and_arithmetic():
    recipe = compose("quickstart")
    console = Console(width=110)
    with console.capture() as captured:
        console.print(plan_view(make_plan(recipe, Machine(2 << 30, 1 << 30, 2)), recipe))
    text = captured.get()
    for told in (
        "a vLLM engine",
        "a Megatron rank",
        "1.0 GiB free of 2.0 GiB here",
        "groups of",
        "never over 4",
        "Note: the run needs about",
        "generated",
        "3,000",
    ):
        assert told in text


def test_the_plan_says_what_adapters_bring_and_how_many_versions_an_engine_holds(model):
    overrides = [model, "+learner.lora={rank: 4, publish: adapter}", "generators.updates=at_episode"]
    recipe = compose("quickstart", overrides)
    console = Console(file=io.StringIO(), width=120, _environ={})
    console.print(plan_view(make_plan(recipe, ROOMY), recipe))
    text = console.file.getvalue()
    assert "; an engine holds 5 versions of them" in text
    assert "Weights to an engine" not in text


def test_the_plan_says_what_each_rank_sends_to_each_worker_of_an_engine(model):
    overrides = [model, "learner={tensor_parallel: 2, data_parallel: 2}", "generators={count: 1, tensor_parallel: 2}"]
    recipe = compose("quickstart", overrides)
    plan = make_plan(recipe, ROOMY)
    (slices,) = plan.slices
    assert all(map(any, slices.moved)), "replicas share out what is sent"
    weights = sum(map(sum, slices.moved))
    per_element = 4 if recipe.learner.dtype == "float32" else 2
    assert weights >= plan.parameters * per_element
    assert "self_attn.qkv_proj.weight" in {merge.parameter.removeprefix("model.layers.*.") for merge in slices.merges}
    console = Console(file=io.StringIO(), width=120, _environ={})
    console.print(plan_view(plan, recipe))
    assert all(re.search(rf"│ {rank}\s+│", console.file.getvalue()) for rank in range(4))


def test_replicas_beyond_the_layers_send_nothing(model):
    recipe = compose("quickstart", [model, "learner.data_parallel=64", "batch.groups_per_step=64"])
    plan = make_plan(recipe, ROOMY)
    silent = [any(row) for row in plan.slices[0].moved].count(False)
    assert 0 < silent < 64
    console = Console(file=io.StringIO(), width=120, _environ={})
    console.print(plan_view(plan, recipe))
    assert re.search(rf"{silent} replicas\s+│\s+nothing", console.file.getvalue())


def test_what_engines_on_a_cpu_cannot_do_is_refused_before_anything_starts(model):
    with pytest.raises(RecipeError, match=r"generators\.engine\.pipeline_parallel_size: it cannot be used on a CPU"):
        make_plan(compose("quickstart", [model, "generators.engine={pipeline_parallel_size: 2}"]), ROOMY)
    with pytest.raises(RecipeError, match=r"generators\.pools\.exam\.engine\.pipeline_parallel_size: it cannot be used on a CPU"):
        make_plan(compose("quickstart", [model, "+generators.pools.exam={count: 1, engine: {pipeline_parallel_size: 2}}"]), ROOMY)
