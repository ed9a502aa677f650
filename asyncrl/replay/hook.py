"""What the hook of a replay sees: every micro-batch of the steps that were asked for, with its tensors.

A hook is a function of the user's own, ``asyncrl replay RUN --step N --hook module:function``. It is called with a
:class:`SeenMicroBatch`, may print and keep what it sees, and must change nothing of it; it may raise :class:`StopReplay`.
With one rank it has the terminal, so ``breakpoint()`` works in it.
"""

from collections.abc import Mapping

import msgspec
import torch
from torch import Tensor

from asyncrl.core.batch import RowName
from asyncrl.learners.algorithm.losses import Outcome
from asyncrl.learners.batches.micro_batch import MicroBatch


class StopReplay(BaseException):  # no error, so nothing that handles errors takes it
    """A hook raises it to end the replay; its text is shown."""


class SeenMicroBatch(msgspec.Struct, frozen=True, kw_only=True):
    """A micro-batch of ``n`` sampled tokens in some rows, as the loss sees it. Tensors are on the rank's device.

    Attributes:
        step: the training step, which trains version ``step - 1``.
        optimizer_step: which of its optimizer steps, from 0.
        rank: the rank that computes it.
        names: group, sample index and part of each row.
        row, turn: int64 [n], the row and the turn of each token, from 0 within the micro-batch.
        tokens: int64 [n], token ids.
        advantage: float32 [n].
        ratio: float32 [n], probability under the policy being optimised, over that under the anchor of the loss.
        weight: float32 [n], the importance weight as applied; 0 where the token is not in the loss.
        mask: bool [n], tokens that are not too stale for the loss.
        clipped: bool [n], tokens in the loss whose gradient the loss itself cut.
        staleness: int [n], versions between sampling and training.
        learner, engine: float32 [n], the token's log-probability (nats) by each.
        reference, teacher: float32 [n], that under the reference policy and by the teacher; None without one.
        pull: float32 [n], |derivative of the loss by the token's log-probability|, times 1 - its probability: how hard the loss
            pulls at it. A token that is as good as certain is not moved, whatever its advantage.
        gradient_norm: float64 [rows], the norm of what each row alone adds to the optimizer step's gradient, before clipping.
        loss: the micro-batch's share of the loss.
    """

    step: int
    optimizer_step: int
    rank: int
    names: tuple[RowName, ...]
    row: Tensor
    turn: Tensor
    tokens: Tensor
    advantage: Tensor
    ratio: Tensor
    weight: Tensor
    mask: Tensor
    clipped: Tensor
    staleness: Tensor
    learner: Tensor
    engine: Tensor
    reference: Tensor | None
    teacher: Tensor | None
    pull: Tensor
    gradient_norm: Tensor
    loss: float


def seen(
    step: int, optimizer_step: int, rank: int, batch: MicroBatch, logp: Tensor, outcome: Outcome, norms: Mapping[RowName, float]
) -> SeenMicroBatch:
    """Describe a micro-batch that is being trained, given the gradient norm of each row."""
    found = logp.detach().float()
    pull = torch.zeros_like(found)
    if outcome.loss.requires_grad and logp.requires_grad:
        (by_token,) = torch.autograd.grad(outcome.loss, logp, retain_graph=True, allow_unused=True)
        if by_token is not None:
            pull = by_token.detach().float().abs() * (1.0 - found.exp())
    return SeenMicroBatch(
        step=step,
        optimizer_step=optimizer_step,
        rank=rank,
        names=batch.names,
        row=batch.rows.index,
        turn=batch.turns.index,
        tokens=batch.targets,
        advantage=batch.advantages,
        ratio=outcome.log_ratio.exp(),
        weight=outcome.weight.detach(),
        mask=batch.mask,
        clipped=outcome.clipped,
        staleness=batch.staleness,
        learner=found,
        engine=batch.logp_behaviour,
        reference=batch.logp_reference,
        teacher=batch.logp_teacher,
        pull=pull,
        gradient_norm=torch.tensor([norms.get(name, 0.0) for name in batch.names], dtype=torch.float64, device=found.device),
        loss=outcome.loss.item(),
    )
