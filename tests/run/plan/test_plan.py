import io
import json
import re
import sys
from pathlib import Path

import msgspec
import pyarrow.parquet
import pytest
from model_folders import SMALL, write_model
from planned import QWEN3_0_6B, ROOMY
from rich.console import Console

from asyncrl.core.errors import RecipeError
from asyncrl.core.recipe.rules.inert import inert
from asyncrl.core.recipe.schema import Recipe
from asyncrl.run.models.model_shape import CPU_HEAD_SIZES, read_shape
from asyncrl.run.nodes.machine import Machine
from asyncrl.run.nodes.process_sizes import engine_bytes, sizes_of
from asyncrl.run.plan.plan import Source, make_plan
from asyncrl.run.plan.plan_view import plan_view
from asyncrl.run.recipe.compose import compose
from generators.vllm import vllm_parsers

QWEN3_30B_A3B = {
    "hidden_size": 2048,
    "num_hidden_layers": 48,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "intermediate_size": 6144,
    "vocab_size": 151936,
    "max_position_embeddings": 40960,
    "num_experts": 128,
    "moe_intermediate_size": 768,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "model_type": "qwen3_moe",
    "architectures": ["Qwen3MoeForCausalLM"],
    "num_experts_per_tok": 8,
}


@pytest.fixture
def mixture(tmp_path: Path) -> str:
    write_model(tmp_path, QWEN3_30B_A3B)
    return f"model.path={tmp_path}"


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


def test_experts_are_counted_and_shared_out(mixture):
    # The published model has 30,532,122,624 parameters, norms included.
    assert read_shape(mixture.removeprefix("model.path=")).parameters == pytest.approx(30_532_122_624, rel=1e-3)

    def learner(*overrides: str):
        plan = make_plan(compose("quickstart", [mixture, "learner.data_parallel=8", "learner.dtype=float32", *overrides]), ROOMY)
        return next(process for process in plan.processes if process.role == "learner")

    whole, shared = learner(), learner("learner.expert_parallel=4", "learner.expert_tensor_parallel=2")
    assert shared.what == "a Megatron rank (tensor 1, pipeline 1, data 8, expert 4, expert tensor 2)"
    # Weights and gradients of 28,991,029,248 parameters; their moments are shared out either way.
    assert whole.each_bytes - shared.each_bytes == pytest.approx(28_991_029_248 * 8 * 7 / 8, rel=1e-6)


def test_each_rank_of_an_engine_has_all_but_the_experts(mixture):
    def engine(ranks: int) -> int:
        recipe = compose("quickstart", [mixture, f"generators={{dtype: bfloat16, data_parallel: {ranks}}}"])
        pool, shape = recipe.generators, read_shape(recipe.model.path)
        return sizes_of(recipe, shape)["generators"] - engine_bytes(pool)

    # 1,541,093,376 parameters outside of experts, of which an engine has two versions while it changes them
    assert engine(4) - engine(1) == pytest.approx(3 * 1_541_093_376 * 2 * 2, rel=1e-3)


@pytest.mark.parametrize(
    ("layout", "place", "problem"),
    [
        ("lora: {}", "learner.lora.targets", "cannot have adapters for gate_proj, up_proj, down_proj"),
        ("lora: {targets: [q_proj], publish: adapter}", "learner.lora.publish", "vLLM has not got on every device"),
        ("data_parallel: 5, expert_parallel: 5", "learner.expert_parallel", "5 does not divide the model's 128 experts"),
        (
            "data_parallel: 5, expert_tensor_parallel: 5",
            "learner.expert_tensor_parallel",
            "the model's 768 channels of an expert",
        ),
    ],
)
def test_experts_that_cannot_be_shared_out_are_refused(mixture, layout, place, problem):
    with pytest.raises(RecipeError) as caught:
        make_plan(compose("quickstart", [mixture, f"learner={{{layout}}}"]), ROOMY)
    assert caught.value.place == place
    assert problem in caught.value.problem


def test_experts_that_an_engine_s_workers_cannot_share_out_are_refused(mixture):
    whole = "{tensor_parallel: 2, data_parallel: 3, engine: {enable_expert_parallel: true}}"
    with pytest.raises(RecipeError) as caught:
        make_plan(compose("quickstart", [mixture, f"generators={whole}"]), ROOMY)
    assert caught.value.place == "generators.data_parallel"
    assert "6 workers cannot divide the model's 128 experts" in caught.value.problem
    assert "generators.tensor_parallel (2) times it" in caught.value.remedy


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
    assert "preempts" in preempted
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
        ({"architectures": ["Qwen2MoeForCausalLM"]}, "architecture Qwen2MoeForCausalLM is not supported; supported are Llama"),
        ({"architectures": None}, "architecture none"),
    ],
)
def test_a_model_that_the_learner_does_not_take_is_refused(tmp_path, change, told):
    (tmp_path / "config.json").write_text(json.dumps(QWEN3_30B_A3B | change))
    with pytest.raises(RecipeError, match=told) as caught:
        make_plan(compose("quickstart", [f"model.path={tmp_path}"]), ROOMY)
    assert caught.value.place == "model.path"


def of_files(*overrides: str, train: str, evaluation: str) -> Recipe:
    sources = [f"+tasks.train=[{train}]", f"+tasks.evaluation=[{evaluation}]"]
    return compose("quickstart", ["~tasks", "+tasks.kind=files", *sources, *overrides])


def test_every_source_of_tasks_is_read_and_counted(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"prompt": "1+1", "answer": 2}\n{"prompt": \n{"prompt": "2+2", "answer": 4}\n')
    table = pyarrow.table({"question": ["a", "b", None], "answer": [1, 2, 3]})
    pyarrow.parquet.write_table(table, tmp_path / "b.parquet")
    train = f"{{path: {tmp_path}/a.jsonl}}, {{path: {tmp_path}/b.parquet, columns: {{prompt: question}}}}"
    (tmp_path / "c.jsonl").write_text('{"prompt": "3+3", "answer": 6}')
    evaluation = f"{{path: {tmp_path}/c.jsonl}}"
    recipe = of_files("+tasks.on_malformed=skip", train=train, evaluation=evaluation)
    plan = make_plan(recipe, ROOMY)
    assert plan.sources == (
        Source("train", "a.jsonl", 2, 1),
        Source("train", "b.parquet", 2, 1),
        Source("evaluation", "c.jsonl", 1, 0),
    )
    with pytest.raises(RecipeError, match=r"a\.jsonl:2 is not a JSON object") as caught:
        make_plan(of_files(train=train, evaluation=evaluation), ROOMY)
    assert caught.value.place == "tasks.train[0]"


MANY_TASKS = """
from asyncrl.core.messages import Message
from asyncrl.core.task import Task
from asyncrl.envs.base import Environment, Observation, StepResult

class Many(Environment):
    @classmethod
    def make_tasks(cls, split, count, seed):
        assert count <= 20_000, count
        return [Task(id=str(number), prompt="p") for number in range(count)]

    async def reset(self, task): return Observation((Message('user', task.prompt),))
    async def step(self, action): return StepResult(Observation(()), 0.0, True)
"""


def test_of_many_tasks_that_an_environment_makes_the_first_are_made_and_checked(tmp_path, monkeypatch):
    (tmp_path / "many_tasks.py").write_text(MANY_TASKS)
    monkeypatch.syspath_prepend(str(tmp_path))
    plan = make_plan(
        compose("quickstart", ["environment.name=many_tasks:Many", "tasks.train=1000000", "tasks.evaluation=20000"]), ROOMY
    )
    train, evaluation = plan.sources
    assert train == Source("train", "generated", 1_000_000, 0, counted=False)
    assert evaluation == Source("evaluation", "generated", 20_000, 0)
    console = Console(width=200)
    with console.capture() as capture:
        console.print(plan_view(plan, compose("quickstart")))
    assert "at most 1,000,000" in capture.get()


def test_what_no_machine_holds_is_said_with_what_it_would_hold():
    recipe = compose("quickstart", ["generators.count=200"])
    plan = make_plan(recipe, ROOMY)
    said = [remark for remark in plan.remarks if "cannot hold" in remark]
    assert len(said) == 1, plan.remarks
    fitting = int(re.search(r"(\d+) generators would fit", said[0])[1])
    assert f"{plan.total_bytes / 2**30:.1f} GiB, and this machine has 64.0 GiB in all" in said[0]
    assert make_plan(compose("quickstart", [f"generators.count={fitting}"]), ROOMY).total_bytes <= ROOMY.memory
    assert make_plan(compose("quickstart", [f"generators.count={fitting + 1}"]), ROOMY).total_bytes > ROOMY.memory
    tiny = msgspec.structs.replace(ROOMY, memory=1 << 30, free=1 << 29)
    assert any("fits without generators" in remark for remark in make_plan(compose("quickstart"), tiny).remarks)


def test_a_tool_parser_that_vllm_has_not_is_refused_with_those_it_has(monkeypatch):
    """What plug-ins of vLLM add is left out: listing it takes many seconds, and tests of the generators do."""
    monkeypatch.setattr(vllm_parsers, "_all", lambda kind: frozenset())
    with pytest.raises(RecipeError, match=r"no tool parser 'nonsense'; use one of .*hermes.*, llama3_json") as caught:
        make_plan(compose("quickstart", ["model.tool_parser=nonsense"]), ROOMY)
    assert caught.value.place == "model.tool_parser"


def test_task_files_must_be_there(tmp_path):
    (tmp_path / "train.jsonl").write_text('{"prompt": "1+1"}')
    with pytest.raises(RecipeError) as caught:
        make_plan(of_files(train=f"{{path: {tmp_path}/train.jsonl}}", evaluation=f"{{path: {tmp_path}/no.jsonl}}"), ROOMY)
    assert caught.value.place == "tasks.evaluation[0]"


def test_the_curriculum_must_be_there(tmp_path):
    for name in ("train", "held_out"):
        (tmp_path / f"{name}.jsonl").write_text('{"prompt": "1+1"}')
    files = {"train": f"{{path: {tmp_path}/train.jsonl}}", "evaluation": f"{{path: {tmp_path}/held_out.jsonl}}"}
    with pytest.raises(RecipeError) as caught:
        make_plan(of_files("+tasks.curriculum.name=no_such_module:Ladder", **files), ROOMY)
    assert caught.value.place == "tasks.curriculum.name"


MADE = {
    "[]": "returned []",
    "None": "returned None",
    "[{'prompt': 'a'}]": "returned {'prompt': 'a'} at 0",
    "[Task(id=1, prompt='a')]": "returned Task(id=1, prompt='a', data={}, environment='', tools=()) at 0",
    "[Task(id='1', prompt='a'), Task(id='1', prompt='b')]": "two tasks with the same id",
    "[][0]": "raised IndexError",
    "[Task(id='1', prompt='a', data={'at': (1, 2)})]": "data['at'] would reach the environment as [1, 2], where (1, 2) is meant",
    "[Task(id='1', prompt='a', data={'at': {1}})]": "data['at'] would reach the environment as [1], where",
    "[Task(id='1', prompt='a', data={'n': 2**70})]": "data['n'] cannot be sent to the environment: can't serialize ints",
    "[Task(id='1', prompt='a', data={'f': print})]": "data['f'] cannot be sent to the environment: Encoding objects",
    "[Task(id='1', prompt='a', data={1: 2})]": "data[1] cannot be sent to the environment: Expected `str`, got `int`",
    "[Task(id='1', prompt='a', data=[3])]": "returned task '1', whose data is [3]",
    "[Task(id='1', prompt='a', data={'x': reduce(lambda x, _: [x], range(960), 0)})]": "'1', whose data is nested more than 100",
    "[Task(id='1', prompt='a', data={'x': reduce(lambda x, _: [x], range(100), 0)})]": "nested more than 100 levels deep; use",
    "[Task(id='1', prompt='\\ud800')]": "prompt cannot be sent to the environment: 'utf-8' codec can't encode",
    "[Task(id='1', prompt='a', data={FailureKind.DATA: 2})]": "key would reach the environment as 'data'",
    "[type('Unshowable', (), {'__repr__': lambda self: 1 / 0})()]": "returned what cannot be looked at: ZeroDivisionError",
    "[type('Mine', (Task,), {})(id='1', prompt='a')]": "returned a Mine; return Tasks themselves, all else in data",
}


@pytest.mark.parametrize(("made", "told"), MADE.items())
def test_what_an_environment_makes_is_checked(tmp_path, monkeypatch, made, told):
    (tmp_path / "my_world.py").write_text(
        "from functools import reduce\n"
        "from asyncrl.core.errors import FailureKind\n"
        "from asyncrl.core.task import Task\n"
        "from asyncrl.envs.builtin.calculator import Calculator\n"
        "class World(Calculator):\n"
        "    @classmethod\n"
        "    def make_tasks(cls, split, count, seed, **options):\n"
        f"        return {made}\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "my_world", raising=False)
    with pytest.raises(RecipeError) as caught:
        make_plan(compose("quickstart", ["environment.name=my_world:World"]), ROOMY)
    assert told in str(caught.value)


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
    assert [any(row) for row in slices.moved] == [True, True, False, False], "replicas send nothing"
    weights = sum(map(sum, slices.moved))
    per_element = 4 if recipe.learner.dtype == "float32" else 2
    assert weights >= plan.parameters * per_element
    assert "self_attn.qkv_proj.weight" in {merge.parameter.removeprefix("model.layers.*.") for merge in slices.merges}
    console = Console(file=io.StringIO(), width=120, _environ={})
    console.print(plan_view(plan, recipe))
    assert re.search(r"2 replicas\s+│\s+nothing\s+│\s+nothing", console.file.getvalue())


def test_what_engines_on_a_cpu_cannot_do_is_refused_before_anything_starts(model):
    with pytest.raises(RecipeError, match=r"generators\.engine\.pipeline_parallel_size: it cannot be used on a CPU"):
        make_plan(compose("quickstart", [model, "generators.engine={pipeline_parallel_size: 2}"]), ROOMY)
    with pytest.raises(RecipeError, match=r"generators\.pools\.exam\.engine\.pipeline_parallel_size: it cannot be used on a CPU"):
        make_plan(compose("quickstart", [model, "+generators.pools.exam={count: 1, engine: {pipeline_parallel_size: 2}}"]), ROOMY)
