"""Which GPUs a run needs, and what is said where there are too few."""

import pytest
from msgspec.structs import replace

from asyncrl.core.errors import ProcessDied, RecipeError
from asyncrl.run.compose import compose, compose_for
from asyncrl.run.dead_rank import explained, probable_cause
from asyncrl.run.gpus import parse
from asyncrl.run.machine import Machine
from asyncrl.run.parts import parts_of, pools_of
from asyncrl.run.plan import make_plan, place_on

ONE = Machine(memory=64 << 30, free=60 << 30, cores=8, gpus=1, gpu_memory=80 << 30)
TOLD = """\
0, GPU-aaaa-1, NVIDIA H100 80GB HBM3, 81559, 580.95.05
1, GPU-bbbb-2, NVIDIA H100 80GB HBM3, 81559, 580.95.05
"""


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


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("[Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7)", "did not finish in time"),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20 GiB", "out of GPU memory"),
        ("Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 1000", "two ranks on one GPU"),
        ("RuntimeError: CUDA error: an illegal memory access was encountered", "a kernel failed"),
    ],
)
def test_what_a_dead_rank_died_of_is_told(tmp_path, line, told):
    log = tmp_path / "learner-0.log"
    log.write_text("x" * 1000 + f"\n{line}\nterminate called\n")
    assert told in probable_cause(log)
    death = explained(ProcessDied("learner rank 0: its process died (signal 6)"), log)
    assert str(death).startswith("learner rank 0: its process died (signal 6): probably ")
    assert str(log) in str(death)


def test_nothing_is_guessed_of_a_rank_whose_log_tells_nothing(tmp_path):
    death = ProcessDied("gone")
    assert explained(death, tmp_path / "missing.log") is death
    (tmp_path / "plain.log").write_text("INFO trained version 3\n")
    assert explained(death, tmp_path / "plain.log") is death
