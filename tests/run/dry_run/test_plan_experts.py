"""A mixture of experts, as the plan counts it and shares it out."""

from pathlib import Path

import pytest
from model_folders import write_model
from planned import QWEN3_30B_A3B, ROOMY

from asyncrl.core.errors import RecipeError
from asyncrl.run.dry_run.plan import make_plan
from asyncrl.run.models.model_shape import read_shape
from asyncrl.run.nodes.process_memory import engine_bytes, sizes_of
from asyncrl.run.recipe.compose import compose


@pytest.fixture
def mixture(tmp_path: Path) -> str:
    write_model(tmp_path, QWEN3_30B_A3B)
    return f"model.path={tmp_path}"


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
