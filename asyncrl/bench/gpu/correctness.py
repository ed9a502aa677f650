"""Part 1: one learner rank, its losses, gradients, checkpoints and fingerprints, on the GPU beside the CPU."""

import math
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import msgspec
import torch

from asyncrl.bench.gpu.isolated import MeasurementFailed, isolated, place_of
from asyncrl.bench.gpu.settings import CorrectnessSettings
from asyncrl.bench.gpu.subject import at_version, device, folder_for, make_learner, make_model, rows_of, values_of
from asyncrl.core.publication import Shard
from asyncrl.core.recipe.advantage import GaeAdvantageConfig
from asyncrl.core.recipe.algorithm import KlInLossConfig
from asyncrl.core.recipe.learner import LoraConfig
from asyncrl.learners.metrics import GRAD_NORM, POLICY_LOSS
from asyncrl.weights.fingerprint import Fingerprints
from asyncrl.weights.publication_merge import merge
from asyncrl.weights.shm.shared_tensors import SharedMemory

FLOAT32_GRADIENTS, BFLOAT16_GRADIENTS = 1e-4, 2e-2
"""Largest relative difference of gradient norms that is accepted."""


class Variant(msgspec.Struct, frozen=True):
    """One way to train, which another piece of the learner computes.

    Attributes:
        name: what the result calls it.
        learner, algorithm: keys of those sections of the recipe.
        prompt: tokens of the prompt that the rows of a group share; None for prompts of their own.
        experts: whether the model is a mixture of experts.
    """

    name: str
    learner: dict[str, object] = {}
    algorithm: dict[str, object] = {}
    prompt: int | None = None
    experts: bool = False


KL = KlInLossConfig(coefficient=0.01)
VARIANTS = (
    Variant("plain", algorithm={"kl": KL}),
    Variant("shared prompt", prompt=48),
    Variant("recompute full", learner={"recompute": "full"}),
    Variant("recompute selective", learner={"recompute": "selective"}),
    Variant("adapters", learner={"lora": LoraConfig()}),
    Variant("experts", experts=True),
    Variant("critic", algorithm={"advantage": GaeAdvantageConfig()}),
    Variant("two optimizer steps", algorithm={"minibatches": 2}),
)


class RankOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """What one rank computed.

    Attributes:
        variant, device, dtype: how, where and in what.
        transformer_engine: whether its layers are TransformerEngine's.
        losses, grad_norms: of each training step.
        fingerprint_equal: whether what was published and read again has the fingerprint of the weights.
        resume_difference: relative difference of the next step's gradient norm after a checkpoint was loaded.
        problem: why it computed nothing; empty if it did.
        seconds: how long that took, with what had to be compiled.
    """

    variant: str
    device: str
    dtype: str
    transformer_engine: bool = False
    losses: tuple[float, ...] = ()
    grad_norms: tuple[float, ...] = ()
    fingerprint_equal: bool = False
    resume_difference: float = math.inf
    problem: str = ""
    seconds: float = 0.0


class CorrectnessResult(msgspec.Struct, frozen=True, kw_only=True):
    """The outcomes of all ranks, and how far they are apart.

    Attributes:
        ranks: on the CPU in float32 first.
        gradient_gaps: largest relative difference of gradient norms to the same variant on the CPU in float32, by variant, device
            and type.
        loss_gaps: the largest difference of losses, likewise.
        refused: what is not as it should be of the gaps, fingerprints and resumed steps, one line each.
        missing: what could not be compared.
    """

    ranks: tuple[RankOutcome, ...]
    gradient_gaps: dict[str, float]
    loss_gaps: dict[str, float]
    refused: tuple[str, ...]
    missing: tuple[str, ...]


def measure(settings: CorrectnessSettings, seconds: float) -> CorrectnessResult:
    """Compare ranks. Each device and data type has a process of its own, all side by side, the first without seeing a GPU."""
    on_gpu = torch.cuda.is_available()
    others = ("float32", "bfloat16") if on_gpu else ("bfloat16",)
    with folder_for(settings.model) as folder:
        isolated(make_models, folder, settings, seconds=seconds, gpus=False, forked=not on_gpu)
        with ThreadPoolExecutor() as threads:
            # The threads only wait. Without what all are compared with, there is no result.
            first = threads.submit(
                isolated, all_variants, folder, settings, "float32", seconds=seconds, gpus=False, forked=not on_gpu
            )
            beside = [threads.submit(_asked, folder, settings, dtype, seconds, not on_gpu) for dtype in others]
            ranks = [*first.result(), *(outcome for each in beside for outcome in each.result())]
    return compared(ranks, () if on_gpu else ("a GPU: only the CPU was measured",))


def _asked(folder: Path, settings: CorrectnessSettings, dtype: str, seconds: float, forked: bool) -> list[RankOutcome]:
    """All variants on the device that is measured, or why there are none."""
    try:
        return isolated(all_variants, folder, settings, dtype, seconds=seconds, forked=forked)
    except MeasurementFailed as failure:
        return [RankOutcome(variant="all", device=device(), dtype=dtype, problem=str(failure))]


def compared(ranks: Sequence[RankOutcome], missing: tuple[str, ...]) -> CorrectnessResult:
    """Compare each variant with itself on the CPU in float32."""
    expected = {rank.variant: rank for rank in reversed(ranks) if (rank.device, rank.dtype) == ("cpu", "float32")}
    gradients: dict[str, float] = {}
    losses: dict[str, float] = {}
    refused: list[str] = []
    for rank in ranks:
        name = f"{rank.variant}, {rank.device}, {rank.dtype}"
        if rank.problem:
            refused.append(f"{name}: {rank.problem}")
            continue
        if not rank.fingerprint_equal:
            refused.append(f"{name}: what was published and read again has another fingerprint than the weights")
        if not rank.resume_difference < FLOAT32_GRADIENTS:
            refused.append(f"{name}: the resumed step's gradient norm differs by {rank.resume_difference:.1e}")
        first = expected[rank.variant]
        if rank is first or first.problem:
            continue
        gradients[name] = max(abs(one / other - 1) for one, other in zip(rank.grad_norms, first.grad_norms, strict=True))
        losses[name] = max(abs(one - other) for one, other in zip(rank.losses, first.losses, strict=True))
        if not gradients[name] < (FLOAT32_GRADIENTS if rank.dtype == "float32" else BFLOAT16_GRADIENTS):
            refused.append(f"{name}: gradient norms differ by {gradients[name]:.1e} from the CPU's in float32")
    return CorrectnessResult(
        ranks=tuple(ranks), gradient_gaps=gradients, loss_gaps=losses, refused=tuple(refused), missing=missing
    )


def make_models(folder: Path, settings: CorrectnessSettings) -> None:
    """Write a dense model and a mixture of experts of the same size."""
    make_model(folder / "dense", settings.model)
    make_model(folder / "experts", settings.model, experts=4)


def all_variants(folder: Path, settings: CorrectnessSettings, dtype: str) -> list[RankOutcome]:
    """Train every variant, one after the other, in this process."""
    outcomes = []
    for variant in VARIANTS:
        began = time.monotonic()
        try:
            outcome = one_rank(folder, settings, dtype, variant)
        except Exception as error:  # noqa: BLE001 - the other variants are tried all the same, and the result says what failed
            problem = f"{type(error).__name__}: {error} ({place_of(error)})"
            outcome = RankOutcome(variant=variant.name, device=device(), dtype=dtype, problem=problem)
        outcomes.append(msgspec.structs.replace(outcome, seconds=time.monotonic() - began))
    return outcomes


def one_rank(folder: Path, settings: CorrectnessSettings, dtype: str, variant: Variant) -> RankOutcome:
    """Train, publish, save a checkpoint, train on; then load the checkpoint and train on again."""
    lengths = [settings.tokens // 2 + (7 * number) % settings.tokens for number in range(settings.rows)]
    batch, rows = rows_of([length + (variant.prompt or 0) for length in lengths], settings.model.vocabulary, variant.prompt)
    model = folder / ("experts" if variant.experts else "dense")
    learner = make_learner(model, 4 * settings.tokens, variant.algorithm, dtype=dtype, **variant.learner)
    from asyncrl.learners.megatron.layers.layer_spec import uses_transformer_engine

    with closing(learner):
        losses, norms = [], []
        for version in range(settings.steps):
            values = values_of(learner.step(at_version(batch, version), rows))
            losses.append(values[POLICY_LOSS.name])
            norms.append(values[GRAD_NORM.name])
        with closing(SharedMemory(f"bench-{device()}-{dtype}", 0, str(folder))) as files:
            published = merge([files.write(learner.version, learner.shards())])
            total = Fingerprints()
            for name, tensor in SharedMemory.read(published, torch.device(device())):
                total.add(Shard(name, tuple(tensor.shape), (0,) * tensor.dim(), tensor))
        checkpoint = folder / f"{dtype} {device()} {variant.name}" / f"version-{learner.version:06d}"
        checkpoint.parent.mkdir()
        learner.start_checkpoint(checkpoint)
        learner.finish_checkpoint()
        following = at_version(batch, settings.steps)
        went_on = values_of(learner.step(following, rows))[GRAD_NORM.name]
        learner.load_checkpoint(checkpoint)
        resumed = values_of(learner.step(following, rows))[GRAD_NORM.name]
        engine = uses_transformer_engine(learner._trainer._chunks[0].config)
    return RankOutcome(
        variant=variant.name,
        device=device(),
        dtype=dtype,
        transformer_engine=engine,
        losses=tuple(losses),
        grad_norms=tuple(norms),
        fingerprint_equal=total.total() == published.fingerprint,
        resume_difference=abs(resumed / went_on - 1),
    )
