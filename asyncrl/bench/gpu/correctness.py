"""Part 1: one learner rank, its losses, gradients, checkpoints and fingerprints, on the GPU beside the CPU."""

from contextlib import closing
from pathlib import Path

import msgspec
import torch

from asyncrl.bench.gpu.isolated import isolated
from asyncrl.bench.gpu.settings import CorrectnessSettings
from asyncrl.bench.gpu.subject import at_version, device, folder_for, make_learner, make_model, rows_of, values_of
from asyncrl.core.publication import Shard
from asyncrl.core.recipe.algorithm import KlInLossConfig
from asyncrl.weights.fingerprint import Fingerprints
from asyncrl.weights.merge import merge
from asyncrl.weights.shm.shared_memory import SharedMemory
from learners.metrics import GRAD_NORM, POLICY_LOSS

FLOAT32_GRADIENTS, BFLOAT16_GRADIENTS = 1e-4, 2e-2
"""Largest relative difference of gradient norms that is accepted."""


class RankOutcome(msgspec.Struct, frozen=True):
    """What one rank computed.

    Attributes:
        device, dtype: where and in what.
        transformer_engine: whether its layers are TransformerEngine's.
        losses, grad_norms: of each training step.
        fingerprint_equal: whether what was published and read again has the fingerprint of the weights.
        resume_difference: relative difference of the next step's gradient norm after a checkpoint was loaded.
    """

    device: str
    dtype: str
    transformer_engine: bool
    losses: tuple[float, ...]
    grad_norms: tuple[float, ...]
    fingerprint_equal: bool
    resume_difference: float


class CorrectnessResult(msgspec.Struct, frozen=True, kw_only=True):
    """The outcomes of all ranks, and how far they are apart.

    Attributes:
        ranks: on the CPU in float32 first.
        gradient_gaps: largest relative difference of gradient norms to the first, by device and type.
        loss_gaps: the largest difference of losses, likewise.
        accepted: whether the gaps, fingerprints and resumed steps are what they should be.
        missing: what could not be compared.
    """

    ranks: tuple[RankOutcome, ...]
    gradient_gaps: dict[str, float]
    loss_gaps: dict[str, float]
    accepted: bool
    missing: tuple[str, ...]


def measure(settings: CorrectnessSettings, seconds: float) -> CorrectnessResult:
    """Compare ranks. Each trains in a process of its own, the first without seeing a GPU."""
    with folder_for(settings.model) as folder:
        isolated(make_model, folder, settings.model, seconds=seconds, gpus=False)
        ranks = [isolated(one_rank, folder, settings, "float32", seconds=seconds, gpus=False)]
        on_gpu = torch.cuda.is_available()
        others = ("float32", "bfloat16") if on_gpu else ("bfloat16",)
        ranks += [isolated(one_rank, folder, settings, dtype, seconds=seconds) for dtype in others]
    first, gradients, losses = ranks[0], {}, {}
    for rank in ranks[1:]:
        name = f"{rank.device} {rank.dtype}"
        pairs = zip(rank.grad_norms, first.grad_norms, strict=True)
        gradients[name] = max(abs(one / expected - 1) for one, expected in pairs)
        losses[name] = max(abs(one - expected) for one, expected in zip(rank.losses, first.losses, strict=True))
    accepted = all(
        gap < (FLOAT32_GRADIENTS if name.endswith("float32") else BFLOAT16_GRADIENTS) for name, gap in gradients.items()
    ) and all(rank.fingerprint_equal and rank.resume_difference < FLOAT32_GRADIENTS for rank in ranks)
    return CorrectnessResult(
        ranks=tuple(ranks),
        gradient_gaps=gradients,
        loss_gaps=losses,
        accepted=accepted,
        missing=() if on_gpu else ("a GPU: only the CPU was measured",),
    )


def one_rank(folder: Path, settings: CorrectnessSettings, dtype: str) -> RankOutcome:
    """Train, publish, save a checkpoint, train on; then load the checkpoint and train on again."""
    lengths = [settings.tokens // 2 + (7 * number) % settings.tokens for number in range(settings.rows)]
    batch, rows = rows_of(lengths, settings.model.vocabulary)
    learner = make_learner(folder, 4 * settings.tokens, dtype=dtype, kl=KlInLossConfig(coefficient=0.01))
    from learners.megatron.layers.layer_spec import uses_transformer_engine

    losses, norms = [], []
    for version in range(settings.steps):
        values = values_of(learner.step(at_version(batch, version), rows))
        losses.append(values[POLICY_LOSS.name])
        norms.append(values[GRAD_NORM.name])
    with closing(SharedMemory("bench", 0, str(folder))) as files:
        published = merge([files.write(learner.version, learner.shards())])
        total = Fingerprints()
        for name, tensor in SharedMemory.read(published, torch.device(device())):
            total.add(Shard(name, tuple(tensor.shape), (0,) * tensor.dim(), tensor))
    checkpoint = folder / dtype / f"version-{learner.version:06d}"
    checkpoint.parent.mkdir(exist_ok=True)
    learner.start_checkpoint(checkpoint)
    learner.finish_checkpoint()
    following = at_version(batch, settings.steps)
    went_on = values_of(learner.step(following, rows))[GRAD_NORM.name]
    learner.load_checkpoint(checkpoint)
    resumed = values_of(learner.step(following, rows))[GRAD_NORM.name]
    engine = uses_transformer_engine(learner._trainer._chunks[0].config)
    learner.close()
    return RankOutcome(
        device=device(),
        dtype=dtype,
        transformer_engine=engine,
        losses=tuple(losses),
        grad_norms=tuple(norms),
        fingerprint_equal=total.total() == published.fingerprint,
        resume_difference=abs(resumed / went_on - 1),
    )
