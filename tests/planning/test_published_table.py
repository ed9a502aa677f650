"""What a published table says of asynchronous training, foreseen from its synchronous rows: docs/benchmarks/speed.md.

The table is verl's of fully asynchronous training: Qwen2.5-Math-7B, H20, 512 prompts with 16 answers each of at most 28k tokens.
"""

import json
from pathlib import Path

import msgspec
import pytest

from asyncrl.core.recipe.schema import Recipe
from asyncrl.planning.prediction import predict
from asyncrl.planning.rate_fit import Basis
from asyncrl.planning.rate_sources import basis_of_file, machine_of
from asyncrl.planning.rates_file import read_rates
from asyncrl.run.recipe.compose import compose_for
from asyncrl.simulation.modelled_run import ModelledRun
from asyncrl.simulation.rates import Rate

SYNCHRONOUS = {
    64: {"step": 365.28, "play": 150.72, "old_log_probabilities": 70.26, "update": 133.41},
    128: {"step": 356.30, "play": 177.85, "old_log_probabilities": 53.92, "update": 113.81},
}
"""Seconds of a step and of its parts, by GPUs, all of which play and then train."""
ASYNCHRONOUS = {16: 294.77, 32: 189.26, 64: 150.63}
"""Seconds of a step where so many GPUs train and as many play."""
MINIBATCHES, LONGEST, PROMPT = 16, 28_672, 130
REDUCED = 1.218
"""Seconds in which 7.6 billion gradients are added up, by the shipped file."""


def calibrated() -> Basis:
    """The rates of an H20 that give the synchronous rows: two learners, and the mean of the two times of play."""
    smaller, larger = SYNCHRONOUS[64], SYNCHRONOUS[128]
    fixed = 2 * larger["update"] - smaller["update"]
    beside = [row["step"] - row["play"] - row["old_log_probabilities"] - row["update"] for row in SYNCHRONOUS.values()]
    file = read_rates("h20")
    assert file.hardware is not None
    assert file.episodes is not None
    hardware = msgspec.structs.replace(
        file.hardware,
        learner_step=given(fixed / MINIBATCHES - REDUCED),
        write=given(sum(beside) / len(beside)),
        learner_mfu=given(0.59),
        decode_bandwidth=given(0.9),
        engine_step=given(0.0004),
    )
    episodes = msgspec.structs.replace(
        file.episodes, prompt=given(PROMPT), sampled=given(370), spread=given(1.35), most=given(LONGEST)
    )
    return basis_of_file(msgspec.structs.replace(file, hardware=hardware, episodes=episodes), "h20, calibrated", None)


def given(value: float) -> Rate:
    return Rate(value, "calibrated")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The shape of Qwen2.5-Math-7B."""
    folder = tmp_path_factory.mktemp("math-7b")
    shape = {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "hidden_size": 3584,
        "intermediate_size": 18_944,
        "num_hidden_layers": 28,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
        "vocab_size": 152_064,
        "tie_word_embeddings": False,
        "max_position_embeddings": 32_768,
    }
    (folder / "config.json").write_text(json.dumps(shape))
    return folder


def recipe(model: Path, ranks: int, depth: int) -> Recipe:
    keys = (
        *(f"model.path={model}", "model.max_context=32768", f"sampling.max_turn_tokens={LONGEST}"),
        *("batch.groups_per_step=512", "batch.group_size=16", f"algorithm.minibatches={MINIBATCHES}"),
        *("learner.recompute=full", "learner.micro_batch_tokens=32768", f"learner.data_parallel={ranks}"),
        *(f"generators.count={ranks}", f"buffer.pipeline_depth={depth}", f"buffer.max_staleness={4 * depth}"),
        *("steps=400", "evaluation.every=1000", "checkpoint.every=1000"),
    )
    return compose_for(machine_of(read_rates("h20"), 2 * ranks), "quickstart", keys)[0]


@pytest.mark.parametrize("ranks", ASYNCHRONOUS)
def test_asynchronous_rows_follow_from_synchronous_ones(model: Path, ranks: int):
    found = predict(recipe(model, ranks, depth=1), calibrated(), seeds=1, steps=4)
    assert found.step_s.mean == pytest.approx(ASYNCHRONOUS[ranks], rel=0.15)
    assert found.idle_learner.mean < 0.05, "the learner is what holds it up"
    assert found.staleness_mean.mean == pytest.approx(1, abs=0.1)


@pytest.mark.parametrize("gpus", SYNCHRONOUS)
def test_synchronous_rows_are_those_that_rates_were_calibrated_with(model: Path, gpus: int):
    one, basis = recipe(model, gpus, depth=0), calibrated()
    found = ModelledRun(one, basis.rates_of(one), basis.training.episodes, seed=0, steps=8).run().time.learner
    assert found.training / 8 == pytest.approx(SYNCHRONOUS[gpus]["update"], rel=0.06)
    assert found.waiting / 8 == pytest.approx(SYNCHRONOUS[gpus]["play"], rel=0.25)
