"""What the benchmark measures on a GPU, and what is chosen where learner and engine share one, fits: by the weights' own sums."""

import msgspec
import pytest
from model_folders import qwen3_folder

from asyncrl.bench.gpu import room, training
from asyncrl.bench.gpu.settings import QWEN3_4B, QWEN3_17B, GpuBenchSettings, ModelSize
from asyncrl.run.dry_run.plan import make_plan
from asyncrl.run.nodes.machine import Machine
from asyncrl.run.recipe.compose import compose_for

SETTINGS = GpuBenchSettings()
GPUS = {"80 GB": 81_559 << 20, "141 GB": 143_771 << 20}
"""What nvidia-smi says of an H100 and of an H200."""
STATE_BYTES = 2 + 4 + 4 + 8
"""Of a weight: itself in bfloat16, its gradient, its master in float32, and two moments."""
WORK_BYTES = 4 << 30
MEASURED = {8192: (48.8e9, 50.4e9, 53.8e9), 16_384: (68.3e9,)}
"""Peaks of a training step of 1.7 B on an H100 by tokens of a micro-batch: docs/benchmarks/speed.md."""


def token_bytes(size: ModelSize, *, recomputed: bool) -> int:
    """What the layers keep of a token of a micro-batch, in bfloat16: the inputs of norms, products, rotations and gates."""
    heads, pairs = size.heads * size.head_dim, size.key_value_heads * size.head_dim
    inputs = 4 * size.hidden + 4 * heads + 4 * pairs + 3 * size.feed_forward
    return 2 * (size.layers * size.hidden + inputs if recomputed else size.layers * inputs)


def learner_bytes(size: ModelSize, tokens: int, *, recomputed: bool = False, trained: int | None = None) -> int:
    """Bytes of one rank; ``trained`` weights of adapters, if the model's own have neither gradients nor moments."""
    state = STATE_BYTES * size.parameters if trained is None else 2 * size.parameters + STATE_BYTES * trained
    return state + tokens * token_bytes(size, recomputed=recomputed) + WORK_BYTES


def engine_bytes(size: ModelSize, share: float, there: int) -> float:
    """Bytes of an engine that has a share of the GPU, and loads its embedding beside the one in use."""
    return share * there + 2 * 2 * size.vocabulary * size.hidden


@pytest.mark.parametrize("tokens", MEASURED)
def test_the_estimate_is_what_an_h100_measured(tokens: int) -> None:
    estimate = room.learner_bytes(QWEN3_17B, msgspec.structs.replace(SETTINGS.training, micro_batch_tokens=tokens))
    assert estimate == pytest.approx(learner_bytes(QWEN3_17B, tokens), rel=0.01)
    assert min(MEASURED[tokens]) < estimate < 1.05 * max(MEASURED[tokens])


@pytest.mark.parametrize("there", GPUS.values(), ids=GPUS)
@pytest.mark.parametrize("size", SETTINGS.training.models, ids=lambda size: size.name)
def test_every_training_case_of_the_benchmark_fits(size: ModelSize, there: int) -> None:
    measured = SETTINGS.training
    options = room.recomputed(size, measured, there)
    assert options is not None
    for rows, further, _ in training._cases_of(size, measured):
        case = options | further
        batch, _ = training._rows(size, measured, rows)
        longest = max(row.length for row in batch.rows)
        needed = learner_bytes(size, max(measured.micro_batch_tokens, longest), recomputed=case.get("recompute") == "full")
        assert needed < there, f"{rows} {case}"
    at_once = room.plain_rows(size, measured, there)
    assert at_once or (size, there) == (QWEN3_4B, GPUS["80 GB"]), "only there is no plain loop to compare with"
    logits = at_once * measured.row_tokens * room.SAMPLED * size.vocabulary * room.PLAIN_LOGIT_BYTES
    kept = at_once * measured.row_tokens * size.layers * size.hidden * room.PLAIN_ACTIVATION_BYTES
    assert 18 * size.parameters * bool(at_once) + logits + kept + WORK_BYTES < there


def test_the_other_parts_of_the_benchmark_fit_on_the_smaller_gpu() -> None:
    there, work = min(GPUS.values()), SETTINGS.logprob
    full_logits = work.tokens * work.vocabulary * (2 + 4 + 4 + 2) + work.tokens * work.hidden * 8
    assert full_logits + WORK_BYTES < there
    publication = SETTINGS.publication.model
    assert 2 * (2 * publication.parameters) + 2 * WORK_BYTES < there, "in two processes, of which each has the weights"
    engine = SETTINGS.engine
    cache_token = 2 * 2 * engine.model.layers * engine.model.key_value_heads * engine.model.head_dim
    requests = engine.requests * (engine.prompt_tokens + engine.new_tokens) * cache_token
    assert 2 * engine.model.parameters + requests + WORK_BYTES < engine.gpu_memory_share * there


ADAPTERS = "learner.lora={rank: 16}"
RANK_16 = 16 * 2 * 3 * (4096 + 9728 + 2560) * 36
"""More weights than adapters of rank 16 have with the largest of the models."""


@pytest.mark.parametrize("there", GPUS.values(), ids=GPUS)
@pytest.mark.parametrize("size", [QWEN3_17B, QWEN3_4B], ids=lambda size: size.name)
@pytest.mark.parametrize("override", ["", "model.max_context=6000", ADAPTERS])
def test_what_is_chosen_for_a_shared_gpu_fits_or_the_plan_says_that_it_does_not(tmp_path, override, size, there) -> None:
    machine = Machine(memory=512 << 30, free=500 << 30, cores=8, gpus=1, gpu_memory=there, gpu_name="NVIDIA H100")
    overrides = [f"model.path={qwen3_folder(tmp_path, size)}", *filter(None, [override])]
    recipe, _ = compose_for(machine, "quickstart", overrides)
    learner, engine = recipe.learner, recipe.generators
    assert learner.gpu == "shared"
    needed = learner_bytes(
        size,
        learner.micro_batch_tokens,
        recomputed=learner.recompute == "full",
        trained=RANK_16 if override == ADAPTERS else None,
    ) + engine_bytes(size, engine.gpu_memory_share, there)
    assert 2 * size.parameters + WORK_BYTES / 2 < engine.gpu_memory_share * there, "the engine has room for a cache"
    told = [remark for remark in make_plan(recipe, machine).remarks if "of GPU memory" in remark]
    assert bool(told) == (needed > there)
    assert not told or size == QWEN3_4B, "smaller ones fit on both"
