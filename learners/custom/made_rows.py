"""A small made batch, on which functions of the user's own are tried before a run starts.

It holds what real batches hold and what is easily forgotten: rows of one token, rows of several turns, tokens that are too
old or left out, a token of probability 1, ratios at their bounds, advantages of 0.
"""

from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import torch
from torch import Tensor

from asyncrl.learners.algorithm.advantages import Returns
from asyncrl.learners.algorithm.kl import OVERFLOW_GUARD
from asyncrl.learners.algorithm.segments import Segments
from asyncrl.learners.custom.inputs import AggregationInputs, LossInputs, WeightInputs

_LENGTHS = (5, 1, 3, 4, 2, 6, 3)
_TURNS = (2, 1, 1, 2, 1, 3, 1)
_TOO_OLD = 4
"""Which row is too old as a whole."""


class MadeRow(NamedTuple):
    """The sampled tokens of one row; all tensors are [tokens of the row].

    Attributes:
        logp, logp_behaviour, advantages: float32.
        staleness: int32.
        turn: int64, the turn of each token, counted from 0 within the row.
        fresh: bool, not too old to be trained.
        kept: bool, fresh and not left out by a correction.
    """

    logp: Tensor
    logp_behaviour: Tensor
    advantages: Tensor
    staleness: Tensor
    turn: Tensor
    fresh: Tensor
    kept: Tensor


def made_rows() -> list[MadeRow]:
    """Make the rows of the batch, always the same."""
    random = torch.Generator().manual_seed(0)
    rows = []
    for number, (length, turns) in enumerate(zip(_LENGTHS, _TURNS, strict=True)):
        behaviour = -4.0 * torch.rand(length, generator=random) - 0.05
        logp = (behaviour + 0.3 * torch.randn(length, generator=random)).clamp(max=-1e-3)
        turn = torch.arange(length) * turns // length
        fresh = torch.ones(length, dtype=torch.bool) if number != _TOO_OLD else torch.zeros(length, dtype=torch.bool)
        kept = fresh.clone()
        advantage = torch.randn(turns, generator=random)[turn] if number else torch.zeros(length)
        rows.append(MadeRow(logp, behaviour, advantage, torch.arange(length, dtype=torch.int32) % 3, turn, fresh, kept))
    first, long = rows[3], rows[5]
    first.fresh[0] = first.kept[0] = False
    long.kept[2] = False
    long.logp[0], long.logp_behaviour[0] = 0.0, -1.0
    long.logp[1], long.logp_behaviour[1] = -0.5, -0.5 - 2 * OVERFLOW_GUARD
    long.logp[4], long.logp_behaviour[4] = -1.0 - 2 * OVERFLOW_GUARD, -1.0
    return rows


class MadeTokens(NamedTuple):
    """Rows laid end to end.

    Attributes:
        leaf: float32 [n], with gradient; ``inputs.logp`` and ``inputs.log_ratio`` are computed from it.
        fresh: bool [n], see :class:`MadeRow`.
    """

    leaf: Tensor
    fresh: Tensor
    inputs: LossInputs


def tokens_of(rows: Sequence[MadeRow], *, with_reference: bool) -> MadeTokens:
    """Lay rows end to end, as a micro-batch does. Without rows, there is no token."""
    nothing = MadeRow(*(values[:0] for values in made_rows()[0]))
    packed = MadeRow(*(torch.cat(values) for values in zip(nothing, *rows, strict=True)))
    leaf = packed.logp.clone().requires_grad_()
    log_ratio = torch.where(packed.fresh, leaf - packed.logp_behaviour, 0.0).clamp(-OVERFLOW_GUARD, OVERFLOW_GUARD)
    counts = torch.tensor([len(row.logp) for row in rows], dtype=torch.int64)
    turns = torch.tensor([int(row.turn.max()) + 1 for row in rows], dtype=torch.int64)
    row_of_token = torch.repeat_interleave(torch.arange(len(rows)), counts)
    before = torch.cumsum(turns, 0) - turns
    inputs = LossInputs(
        logp=torch.where(packed.fresh, leaf, 0.0),
        log_ratio=log_ratio,
        logp_behaviour=packed.logp_behaviour,
        logp_reference=packed.logp_behaviour - 0.1 if with_reference else None,
        advantages=packed.advantages,
        staleness=packed.staleness,
        mask=packed.kept,
        rows=Segments(row_of_token, len(rows)),
        turns=Segments(packed.turn + before[row_of_token], int(turns.sum())),
    )
    return MadeTokens(leaf, packed.fresh, inputs)


def weights_of(rows: Sequence[MadeRow], *, is_anchored: bool) -> WeightInputs:
    """Lay rows end to end for an importance weight; ``is_anchored`` tells whether anchor and sampling policy differ."""
    _, fresh, tokens = tokens_of(rows, with_reference=False)
    log_ratio = tokens.log_ratio.detach()
    return WeightInputs(
        log_ratio=log_ratio if is_anchored else torch.zeros_like(log_ratio),
        logp_behaviour=tokens.logp_behaviour,
        advantages=tokens.advantages,
        staleness=tokens.staleness,
        mask=fresh,
        rows=tokens.rows,
        turns=tokens.turns,
    )


def made_returns(named: int = 0) -> Returns:
    """Make the returns of four groups: with spread, without, of one episode, and with spread again; each of ``named`` rewards."""
    values = [0.0, 1.0, 1.0, 0.5, 1.0, 1.0, 1.0, 0.3, -2.0, 5.0, 0.1]
    group = [0, 0, 0, 0, 1, 1, 1, 2, 3, 3, 3]
    tokens = [5, 1, 3, 4, 2, 6, 3, 9, 0, 7, 2]
    returns = torch.tensor(values, dtype=torch.float64)
    rewards = torch.stack([returns.roll(column) for column in range(named)], 1) if named else None
    return Returns(returns, torch.tensor(group), torch.tensor(tokens), rewards)


def returns_without_spread(named: int = 0) -> Returns:
    """Make the returns of two groups whose members are all equal: a batch in which nothing is to be learned."""
    made = made_returns(named)
    rewards = None if made.rewards is None else torch.ones_like(made.rewards)
    return msgspec.structs.replace(made, values=torch.ones_like(made.values), group=(made.group > 1).long(), rewards=rewards)


def made_aggregation() -> AggregationInputs:
    """Make the rows of an optimizer step, one of them without a token in the loss."""
    weights = torch.tensor([1.0, 1.0, 1.0, 0.5, 2.0], dtype=torch.float64)
    return AggregationInputs(loss_tokens=torch.tensor([5, 1, 0, 7, 3]), weights=weights)
