"""Which GPUs a run needs, and what is said where there are too few."""

import pytest
from model_folders import qwen3_folder
from msgspec.structs import replace

from asyncrl.bench.gpu.settings import QWEN3_06B, QWEN3_4B, QWEN3_17B
from asyncrl.core.errors import RecipeError
from asyncrl.run.dry_run.plan import _remarks_on_gpus, make_plan, place_on
from asyncrl.run.host.gpus import parse
from asyncrl.run.models.model_shape import read_shape
from asyncrl.run.nodes.machine import Machine
from asyncrl.run.nodes.process_kinds import parts_of, pools_of
from asyncrl.run.nodes.process_memory import learner_state_bytes
from asyncrl.run.recipe.compose import compose, compose_for

ONE = Machine(memory=64 << 30, free=60 << 30, cores=8, gpus=1, gpu_memory=80 << 30)
TOLD = """\
0, GPU-aaaa-1, NVIDIA H100 80GB HBM3, 81559, 580.95.05
1, GPU-bbbb-2, NVIDIA H100 80GB HBM3, 81559, 580.95.05
"""


def remarks_on_memory(recipe, machine):
    remarks = _remarks_on_gpus(recipe, read_shape(recipe.model.path), machine)
    return [remark for remark in remarks if "of GPU memory" in remark]


def gpus_of(recipe):
    return sum(part.count * part.each["GPU"] for part in parts_of(recipe, on_gpus=True))


def test_what_nvidia_smi_tells():
    both = list(parse(TOLD, None))
    assert [(gpu.index, gpu.name, gpu.memory) for gpu in both] == [(n, "NVIDIA H100 80GB HBM3", 81559 << 20) for n in (0, 1)]
    assert both[0].driver == "580.95.05"
    assert list(parse(TOLD, "1")) == both[1:]
    assert list(parse(TOLD, "GPU-aaaa")) == both[:1]
    assert list(parse(TOLD, "")) == []


def test_one_gpu_is_shared_without_being_asked():
    recipe, _ = compose_for(ONE, "quickstart", [])
    assert (recipe.learner.gpu, recipe.generators.gpu_memory_share, recipe.generators.count) == ("shared", 0.4, 1)
    assert recipe.learner.dtype == "bfloat16"
    assert gpus_of(recipe) == 1
    plan = make_plan(recipe, ONE)
    assert {process.role: process.gpus for process in plan.processes if process.gpus} == {"generator": 0.5, "learner": 0.5}
    assert not any("GPU" in remark for remark in plan.remarks)


def test_two_gpus_are_not_shared():
    recipe, _ = compose_for(replace(ONE, gpus=2), "quickstart", [])
    assert (recipe.learner.gpu, recipe.generators.gpu_memory_share, recipe.generators.count) == ("own", 0.85, 1)
    assert gpus_of(recipe) == 2


H100 = replace(ONE, gpu_memory=81_559 << 20, gpu_name="NVIDIA H100 80GB HBM3")
CARELESS_TOKEN = 2_100_000
"""Bytes that a token of a micro-batch takes with 1.7 B, read from the layers' code: 28 layers of 37 KB."""


@pytest.mark.parametrize(
    ("size", "gpus", "overrides", "tokens"),
    [
        (QWEN3_06B, 1, [], 16384),
        (QWEN3_06B, 1, ["model.max_context=20000"], 20000),
        (QWEN3_17B, 1, [], 4096),
        (QWEN3_17B, 1, ["model.max_context=6000"], 6000),
        (QWEN3_17B, 1, ["learner.recompute=full"], 16384),
        (QWEN3_17B, 1, ["generators.gpu_memory_share=0.3"], 8192),
        (QWEN3_17B, 2, [], 16384),
        (QWEN3_17B, 2, ["model.max_context=9000"], 16384),
        (QWEN3_4B, 2, [], 1024),
        (QWEN3_4B, 2, ["learner.micro_batch_tokens=8192"], 8192),
    ],
)
def test_a_micro_batch_is_as_large_as_the_gpu_has_room_for(tmp_path, size, gpus, overrides, tokens):
    path = f"model.path={qwen3_folder(tmp_path, size)}"
    recipe, _ = compose_for(replace(H100, gpus=gpus), "quickstart", [path, *overrides])
    assert recipe.learner.micro_batch_tokens == tokens


def test_what_was_chosen_for_a_shared_gpu_fits_into_it(tmp_path):
    recipe, _ = compose_for(H100, "quickstart", [f"model.path={qwen3_folder(tmp_path, QWEN3_17B)}"])
    state = QWEN3_17B.parameters * 18
    engine = recipe.generators.gpu_memory_share * H100.gpu_memory + 2 * 2 * QWEN3_17B.vocabulary * QWEN3_17B.hidden
    work_and_contexts = 4 << 30
    assert state + recipe.learner.micro_batch_tokens * CARELESS_TOKEN + engine + work_and_contexts < H100.gpu_memory
    assert state + 8192 * CARELESS_TOKEN + engine + work_and_contexts > H100.gpu_memory
    assert not list(remarks_on_memory(recipe, H100))
    crowded = replace(recipe, learner=replace(recipe.learner, micro_batch_tokens=8192))
    assert list(remarks_on_memory(crowded, H100))


def test_no_memory_is_counted_for_logits_which_never_exist_at_once(tmp_path):
    shape = read_shape(str(qwen3_folder(tmp_path, QWEN3_17B)))
    learner = replace(compose("quickstart").learner, dtype="bfloat16", micro_batch_tokens=8192)
    more = learner_state_bytes(replace(learner, micro_batch_tokens=16384), shape) - learner_state_bytes(learner, shape)
    assert more / 8192 == pytest.approx(CARELESS_TOKEN, rel=0.1)


@pytest.mark.parametrize(
    ("machine", "running"),
    [
        (H100, 1024),
        (replace(H100, gpu_name="NVIDIA A100-SXM4-80GB"), 256),
        (replace(H100, gpu_memory=24 << 30, gpu_name="NVIDIA L4"), 256),
        (replace(H100, gpus=0), 256),
    ],
)
def test_an_engine_runs_as_many_episodes_at_once_as_vllm_s_default_has_it_there(machine, running):
    recipe, _ = compose_for(machine, "quickstart", ["batch.groups_per_step=200"])
    assert recipe.generators.max_running == running


def test_a_run_that_needs_more_is_refused_with_both_numbers():
    recipe = compose("quickstart", ["learner.gpu=own", "generators.count=2"])
    with pytest.raises(RecipeError, match="no room for 2 of 2 processes of generators, each of which takes 1 GPU") as caught:
        make_plan(recipe, ONE)
    assert "1 x 1 GPU (learner) + 2 x 1 GPU (generators), and there is: this machine with 1 GPU" in caught.value.problem
    assert "learner.gpu=shared" in caught.value.remedy
    make_plan(recipe, replace(ONE, gpus=0))
    engines = pools_of(recipe, on_gpus=True)
    place_on(replace(ONE, gpus=2), recipe, engines)
    with pytest.raises(RecipeError, match="no room for 1 of 2 processes of generators") as caught:
        place_on(ONE, recipe, engines)
    assert "lower generators.count to at most 1" in caught.value.remedy


@pytest.mark.parametrize(
    ("overrides", "place"),
    [
        (["learner.data_parallel=2", "generators.gpu_memory_share=0.4"], "learner.gpu: the learner has 2 ranks"),
        (["generators.tensor_parallel=2", "generators.gpu_memory_share=0.4"], "learner.gpu: an engine of generators spans 2 "),
        (["generators.gpu_memory_share=0.7"], "generators.gpu_memory_share: 0.7 of a GPU's memory"),
    ],
)
def test_what_cannot_share_is_refused(overrides, place):
    with pytest.raises(RecipeError, match=place):
        compose("quickstart", ["learner.gpu=shared", *overrides])


def test_what_the_plan_says_of_gpus():
    slow = make_plan(compose("quickstart", ["learner.dtype=float32", "generators.count=1"]), replace(ONE, gpus=2)).remarks
    assert any("learner.dtype float32 on GPUs" in remark for remark in slow)
    idle = make_plan(compose("quickstart"), replace(ONE, gpus=0, idle_gpus="1, because torch's CPU build is installed")).remarks
    assert any("torch's CPU build is installed" in remark for remark in idle)
    full = make_plan(compose_for(ONE, "quickstart", [])[0], replace(ONE, gpu_memory=10 << 20)).remarks
    assert any("a learner rank needs about" in remark and "for the engine beside it" in remark for remark in full)
