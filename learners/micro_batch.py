"""One micro-batch as tensors: rows laid end to end, and what the loss has to know about each sampled token.

What rows of a group have in common at their beginning is laid down once, as a segment that the rows continue. It has no sampled
token, so nothing but attention and positions knows of it.
"""

from collections.abc import Sequence
from itertools import groupby

import msgspec
import numpy as np
import torch
from torch import Tensor

from asyncrl.core.batch import Batch, BatchRow
from asyncrl.core.trajectory import Trajectory
from learners.loss_tokens import LossTokens
from learners.prefixes import planned_prefix, shared_prefix
from learners.segments import Segments

_PADDING_TOKEN = 0


class MicroBatch(LossTokens, frozen=True, kw_only=True):
    """Packed rows. ``t`` tokens, of which ``n`` were sampled; rows and turns are numbered from 0 within the micro-batch.

    Attributes:
        token_ids: int64 [t].
        lengths: tokens of each segment; they sum to ``t``. First come the shared prefixes, then what each row has beyond the one
            that it continues, or the whole row. A last segment of padding, if any, is not among the rows.
        prefixes: for each shared prefix the numbers of the rows that continue it, which are neighbours.
        positions: int64 [n], increasing: where in the packed sequence the token *before* each sampled token stands, whose hidden
            state predicts it.
        targets: int64 [n], the sampled tokens.
        in_buffer: int32 [n], the part of the staleness that built up after the row was committed.
        logp_proximal: float32 [n], under the policy before the first step of the batch; None where no step needs it ahead of its
            own forward pass, and off the last pipeline stage.
        values, returns: float32 [n], the critic's value of each token's state before the first step of the batch, and the one it
            is to learn; None without a critic, and off the last pipeline stage.
    """

    token_ids: Tensor
    lengths: tuple[int, ...]
    prefixes: tuple[range, ...] = ()
    positions: Tensor
    targets: Tensor
    in_buffer: Tensor
    logp_proximal: Tensor | None = None
    values: Tensor | None = None
    returns: Tensor | None = None

    @property
    def segments(self) -> tuple[int, ...]:
        """:attr:`lengths` without the padding."""
        return self.lengths[: len(self.prefixes) + self.rows.count]

    @property
    def computed_tokens(self) -> int:
        """Tokens that a pass computes, padding left out."""
        return sum(self.segments)

    def to(self, device: torch.device) -> "MicroBatch":
        """This micro-batch, copied to ``device``."""
        moved = {
            name: value.to(device, non_blocking=True)
            for name, value in msgspec.structs.asdict(self).items()
            if isinstance(value, Tensor | Segments)
        }
        return msgspec.structs.replace(self, **moved)


def pack(
    records: Sequence[BatchRow],
    rows: Sequence[Trajectory],
    advantages: Sequence[Sequence[float]],
    shares: Sequence[float],
    *,
    batch: Batch,
    temperature: float,
    multiple: int,
    share_prefixes: bool,
) -> MicroBatch:
    """Lay ``rows`` end to end, padded at the end to a multiple of ``multiple`` tokens (what sequence parallelism divides).

    No rows at all give a micro-batch of padding.

    Args:
        advantages: for each row one advantage for all its turns, or one for each turn.
        shares: factor of each row's loss terms.
        temperature: temperature at which tokens are sampled.
        share_prefixes: whether what neighbouring rows of a group have in common at their beginning is laid down once.

    Raises:
        ValueError: naming the row, if it is not what its record says, its advantages are not as many as its turns, a behaviour
            log-probability is not finite, or log-probabilities are not of the whole distribution at ``temperature``.
    """
    for record, row, of_turns in zip(records, rows, advantages, strict=True):
        _check(record, row, batch, temperature)
        if len(of_turns) not in (1, len(row.turns)):
            raise ValueError(
                f"sample {record.sample_index} of group {record.group_id}: {len(of_turns)} advantages for its {len(row.turns)} "
                "turns; its record must have the reward of each turn"
            )
    prefixes = _prefixes(records, rows) if share_prefixes else {}
    shared = np.zeros(len(rows), np.int64)
    for continuing, length in prefixes.items():
        shared[continuing.start : continuing.stop] = length
    own = np.array([len(row) for row in rows], np.int64) - shared
    lengths = [*prefixes.values(), *own.tolist()]
    total = sum(lengths)
    padding = -total % multiple if total else multiple
    # Where each row begins, if rows were laid down whole, and where its own tokens do in the packed sequence.
    starts = _starts(own + shared, 0)
    own_starts = _starts(own, sum(prefixes.values()))

    def joined(parts: Sequence[np.ndarray], dtype: type) -> np.ndarray:
        end_to_end: np.ndarray = np.concatenate([np.empty(0, dtype), *parts])
        return end_to_end.astype(dtype, copy=False)

    first_tokens = [rows[continuing.start].token_ids[:length] for continuing, length in prefixes.items()]
    own_tokens = [row.token_ids[length:] for row, length in zip(rows, shared.tolist(), strict=True)]
    token_ids = joined([*first_tokens, *own_tokens], np.int64)
    sampled = np.flatnonzero(joined([row.loss_mask for row in rows], np.bool_))
    versions = joined([row.versions() for row in rows], np.int32)[sampled]
    row_of_token = np.searchsorted(starts, sampled, side="right") - 1
    positions = (sampled - 1) + (own_starts - shared - starts)[row_of_token]
    committed = np.array([record.committed_version for record in records], np.int32)[row_of_token]
    # The sampled tokens are exactly those of the turns, in order.
    turn_lengths = np.array([turn.end - turn.start for row in rows for turn in row.turns], np.int64)
    turn_of_token = np.repeat(np.arange(len(turn_lengths)), turn_lengths)
    of_turn = [
        advantage
        for row, of_turns in zip(rows, advantages, strict=True)
        for advantage in (of_turns if len(of_turns) > 1 else [*of_turns] * len(row.turns))
    ]
    return MicroBatch(
        token_ids=torch.from_numpy(np.pad(token_ids, (0, padding), constant_values=_PADDING_TOKEN)),
        lengths=(*lengths, padding) if padding else tuple(lengths),
        prefixes=tuple(prefixes),
        positions=torch.from_numpy(positions),
        targets=torch.from_numpy(token_ids[positions + 1]),
        logp_behaviour=torch.from_numpy(joined([row.logprobs for row in rows], np.float32)[sampled]),
        advantages=torch.from_numpy(np.array(of_turn, np.float32)[turn_of_token]),
        mask=torch.from_numpy(versions >= batch.oldest_version),
        share=torch.from_numpy(np.array(shares, np.float32)[row_of_token]),
        rows=Segments(torch.from_numpy(row_of_token), len(rows)),
        turns=Segments(torch.from_numpy(turn_of_token), len(turn_lengths)),
        singled_out=torch.zeros(len(sampled), dtype=torch.bool),
        max_staleness=batch.version - batch.oldest_version,
        staleness=torch.from_numpy(batch.version - versions),
        in_buffer=torch.from_numpy(batch.version - committed),
    )


def _prefixes(records: Sequence[BatchRow], rows: Sequence[Trajectory]) -> dict[range, int]:
    """For each shared prefix the rows that continue it, and its length."""
    prefixes = {}
    for _, numbers in groupby(range(len(records)), lambda number: records[number].group_id):
        first, *others = numbers
        alike = range(first, first + 1 + len(others))
        if planned_prefix(records[alike.start : alike.stop]) and (length := shared_prefix(rows[alike.start : alike.stop])):
            prefixes[alike] = length
    return prefixes


def _starts(lengths: np.ndarray, first: int) -> np.ndarray:
    """int64 [rows], where rows of ``lengths`` begin that are laid end to end from ``first`` on."""
    starts: np.ndarray = first + np.cumsum(lengths) - lengths
    return starts


def _check(record: BatchRow, row: Trajectory, batch: Batch, temperature: float) -> None:
    """Refuse whatever would be trained on wrong numbers without an error."""
    name = f"sample {record.sample_index} of group {record.group_id}"
    if (row.group_id, row.sample_index) != (record.group_id, record.sample_index):
        raise ValueError(f"{name}: got the payload of sample {row.sample_index} of group {row.group_id}")
    if len(row) != record.length:
        raise ValueError(f"{name}: the payload has {len(row)} tokens, its record says {record.length}")
    row.check()
    turn_rewards = tuple(turn.reward for turn in row.turns)
    if record.turn_rewards and record.turn_rewards != turn_rewards:
        raise ValueError(f"{name}: its turns have the rewards {turn_rewards}, its record says {record.turn_rewards}")
    sampled = row.versions()[row.loss_mask]
    fresh = int((sampled >= batch.oldest_version).sum())
    if fresh != record.loss_tokens:
        raise ValueError(
            f"{name}: {fresh} sampled tokens are of version {batch.oldest_version} or newer, its record says "
            f"{record.loss_tokens}; the loss's denominator would be wrong"
        )
    if len(sampled) and sampled.max() > batch.version:
        raise ValueError(
            f"{name}: sampled by version {sampled.max()}, newer than version {batch.version}, which is being trained"
        )
    if len(row) and row.loss_mask[0]:
        raise ValueError(f"{name}: its first token is sampled, from nothing; a row begins with a prompt")
    used = row.sampling
    if used.temperature != temperature or used.top_p != 1.0 or used.top_k > 0:
        raise ValueError(
            f"{name}: sampled with temperature {used.temperature:g}, top-p {used.top_p:g}, top-k {used.top_k}; the loss compares "
            f"log-probabilities at temperature {temperature:g} without top-p and top-k"
        )
    if not np.isfinite(row.logprobs[row.loss_mask]).all():
        raise ValueError(f"{name}: a behaviour log-probability is not finite")
