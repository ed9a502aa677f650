"""One micro-batch as tensors: rows laid end to end, and what the loss needs to know about each sampled token.

A prefix that rows of a group share is laid down once, as a segment that the rows continue, and a preamble that several
such prefixes begin with is one that they continue in turn. Neither has a sampled token, so only attention and positions need
to know of them. What a row has from its last sampled token on predicts nothing, and is not laid down.
"""

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

import msgspec
import numpy as np
import torch
from torch import Tensor

from asyncrl.core.batch import Batch, BatchRow, RowName
from asyncrl.core.episode import Episode
from asyncrl.core.trajectory import Trajectory
from asyncrl.learners.algorithm.loss_tokens import LossTokens
from asyncrl.learners.algorithm.segments import Segments
from asyncrl.learners.batches.prefixes import planned_prefix, shared_preamble, shared_prefix

_PADDING_TOKEN = 0


class Routing(NamedTuple):
    """The routing of a model with experts: experts of a layer, layers with experts, experts that a token goes to in each."""

    experts: int
    layers: int
    per_token: int


class MicroBatch(LossTokens, frozen=True, kw_only=True):
    """Packed rows: ``t`` tokens, of which ``n`` were sampled. Rows and turns are numbered from 0 within the
    micro-batch.

    Attributes:
        token_ids: int64 [t].
        lengths: tokens of each segment; they add up to ``t``. The preamble comes first, if there is one, and then what
            the shared prefixes have beyond it. Then comes each row: all that is before its last sampled token, or what
            of this follows its shared prefix. If there is padding, it is one last segment, which is not among the rows.
        prefixes: for each shared prefix, the numbers of the rows that continue it, which are neighbours.
        preamble: number of tokens that all shared prefixes begin with, laid down once; 0 if there is no preamble.
        positions: int64 [n], increasing: the place in the packed sequence of the token *before* each sampled token,
            whose hidden state predicts it.
        targets: int64 [n], the sampled tokens.
        in_buffer: int32 [n], the part of the staleness that built up after the row was committed.
        largest_staleness: that of the oldest token of the mini-batch that may enter the loss, the same for all its micro-batches.
        logp_proximal: float32 [n], under the policy before the first optimizer step of the batch; None where no step
            needs it before its own forward pass, and on all pipeline stages but the last.
        values, returns: float32 [n], the critic's value of each token's state before the first optimizer step of the
            batch, and the value it is to learn; None without a critic, and on all pipeline stages but the last.
        names: group, sample index and part of each row.
        experts: int16 [layers with experts, t, per_token], the experts that engines chose; -1 where none did. None if the
            routers choose.
    """

    token_ids: Tensor
    lengths: tuple[int, ...]
    prefixes: tuple[range, ...] = ()
    preamble: int = 0
    positions: Tensor
    targets: Tensor
    in_buffer: Tensor
    largest_staleness: int = 0
    logp_proximal: Tensor | None = None
    values: Tensor | None = None
    returns: Tensor | None = None
    names: tuple[RowName, ...] = ()
    experts: Tensor | None = None

    @property
    def segments(self) -> tuple[int, ...]:
        """:attr:`lengths` without the padding."""
        return self.lengths[: int(self.preamble > 0) + len(self.prefixes) + self.rows.count]

    @property
    def computed_tokens(self) -> int:
        """Number of tokens that a pass computes, without padding."""
        return sum(self.segments)

    def to(self, device: torch.device) -> "MicroBatch":
        """This micro-batch, copied to ``device``."""
        moved = {
            name: value.to(device, non_blocking=True)
            for name, value in msgspec.structs.asdict(self).items()
            if isinstance(value, Tensor | Segments)
        }
        return msgspec.structs.replace(self, **moved)


def unsampled(rows: Sequence[Sequence[int]], multiple: int) -> MicroBatch:
    """Lay rows end to end that nobody trains, to compute the log-probabilities of all their tokens but the first of each.

    Args:
        rows: token ids, at least 2 in each row. Without rows, the result is a micro-batch of padding.
        multiple: what the number of tokens must be divisible by, as in :func:`pack`.
    """
    tokens = [token for row in rows for token in row[:-1]]
    lengths = [len(row) - 1 for row in rows]
    count = len(tokens)
    padding = -count % multiple if tokens else multiple
    index = torch.from_numpy(np.repeat(np.arange(len(rows)), lengths))
    return MicroBatch(
        token_ids=torch.tensor([*tokens, *[_PADDING_TOKEN] * padding], dtype=torch.int64),
        lengths=(*lengths, *([padding] if padding else [])),
        positions=torch.arange(count),
        targets=torch.tensor([token for row in rows for token in row[1:]], dtype=torch.int64),
        in_buffer=torch.zeros(count, dtype=torch.int32),
        logp_behaviour=torch.zeros(count),
        advantages=torch.zeros(count),
        mask=torch.zeros(count, dtype=torch.bool),
        share=torch.zeros(count),
        staleness=torch.zeros(count, dtype=torch.int32),
        rows=Segments(index, len(rows)),
        turns=Segments(index, len(rows)),
        singled_out=torch.zeros(count, dtype=torch.bool),
        max_staleness=0,
    )


def pack(
    records: Sequence[BatchRow],
    rows: Sequence[Trajectory],
    advantages: Sequence[Sequence[float]],
    shares: Sequence[float],
    *,
    batch: Batch,
    multiple: int,
    families: Mapping[RowName, int],
    routing: Routing | None = None,
) -> MicroBatch:
    """Lay ``rows`` end to end. Padding at the end makes the length a multiple of ``multiple`` tokens.

    Without rows, the result is a micro-batch of padding.

    Args:
        records: the batch's record of each row.
        rows: the trajectories.
        advantages: for each row, one advantage for all its turns, or one for each turn.
        shares: factor of each row's loss terms.
        batch: the batch that the rows belong to.
        multiple: what the number of tokens must be divisible by: ranks of sequence parallelism divide the tokens, and
            fp8 products need multiples.
        families: the family of each row, see :func:`.prefixes.families`: a prefix that neighbouring rows of one family have in
            common is laid down once, and so is what several such prefixes begin with. Empty to lay down every row whole.
        routing: the model's routing, if the routers are to take the experts that engines chose; else None.

    Raises:
        ValueError: naming the row, if it does not match its record, the number of its advantages is neither 1 nor the
            number of its turns, a behaviour log-probability is not finite, or its experts are not known.
    """
    for record, row, of_turns in zip(records, rows, advantages, strict=True):
        _check(record, row, batch)
        _check_advantages(record, row, of_turns)
        if routing is not None:
            _check_experts(record, row, routing)
    prefixes = _prefixes(records, rows, families) if families else {}
    shared = np.zeros(len(rows), np.int64)
    for continuing, length in prefixes.items():
        shared[continuing.start : continuing.stop] = length
    whole = np.array([len(row) for row in rows], np.int64)
    own = np.array([_needed(row) for row in rows], np.int64) - shared
    preamble, shared_segments = _shared_tokens(rows, prefixes)
    segments = [*shared_segments, *map(_Stretch, rows, shared.tolist(), (shared + own).tolist())]
    lengths = [segment.length for segment in segments]
    total = sum(lengths)
    padding = -total % multiple if total else multiple
    # Where each row would begin if rows were laid down whole, and where its own tokens begin in the packed sequence.
    starts = _starts(whole, 0)
    own_starts = _starts(own, sum(segment.length for segment in shared_segments))
    token_ids = _joined([row.token_ids[start:end] for row, start, end in segments], np.int64)
    sampled = np.flatnonzero(_joined([row.loss_mask for row in rows], np.bool_))
    versions = _joined([row.versions() for row in rows], np.int32)[sampled]
    row_of_token = np.searchsorted(starts, sampled, side="right") - 1
    positions = (sampled - 1) + (own_starts - shared - starts)[row_of_token]
    committed = np.array([record.committed_version for record in records], np.int32)[row_of_token]
    # The sampled tokens are exactly those of the turns, in order.
    turn_lengths = np.array([turn.end - turn.start for row in rows for turn in row.turns], np.int64)
    turn_of_token = np.repeat(np.arange(len(turn_lengths)), turn_lengths)
    of_turn = _spread_over_turns(rows, advantages)
    return MicroBatch(
        token_ids=torch.from_numpy(np.pad(token_ids, (0, padding), constant_values=_PADDING_TOKEN)),
        lengths=(*lengths, padding) if padding else tuple(lengths),
        prefixes=tuple(prefixes),
        preamble=preamble,
        positions=torch.from_numpy(positions),
        targets=torch.from_numpy(_joined([row.token_ids for row in rows], np.int64)[sampled]),
        logp_behaviour=torch.from_numpy(_joined([row.logprobs for row in rows], np.float32)[sampled]),
        advantages=torch.from_numpy(np.array(of_turn, np.float32)[turn_of_token]),
        mask=torch.from_numpy(versions >= batch.oldest_version),
        share=torch.from_numpy(np.array(shares, np.float32)[row_of_token]),
        rows=Segments(torch.from_numpy(row_of_token), len(rows)),
        turns=Segments(torch.from_numpy(turn_of_token), len(turn_lengths)),
        singled_out=torch.zeros(len(sampled), dtype=torch.bool),
        max_staleness=batch.version - batch.oldest_version,
        largest_staleness=batch.largest_staleness,
        staleness=torch.from_numpy(batch.version - versions),
        in_buffer=torch.from_numpy(batch.version - committed),
        names=tuple(record.name for record in records),
        experts=None if routing is None else _experts(segments, routing, padding),
    )


def _check_advantages(record: BatchRow, row: Trajectory, advantages: Sequence[float]) -> None:
    if len(advantages) not in (1, len(row.turns)):
        raise ValueError(
            f"{record.described}: {len(advantages)} advantages for its {len(row.turns)} turns; its record must hold one reward "
            "for each turn"
        )


def trajectory_of(record: BatchRow, episode: Episode) -> Trajectory:
    """Return the trajectory of an episode that a row is.

    Raises:
        ValueError: the episode is another, or has no such trajectory.
    """
    if (episode.group_id, episode.sample_index) != record.name[:2]:
        raise ValueError(f"{record.described}: got the payload of sample {episode.sample_index} of group {episode.group_id}")
    if record.part >= len(episode.trajectories):
        raise ValueError(f"{record.described}: the payload has {len(episode.trajectories)} trajectories")
    return episode.trajectories[record.part]


def check_sampling(episode: Episode, temperature: float, uses_behaviour: bool) -> None:
    """Refuse an episode whose log-probabilities are not those that the update compares with its own.

    Args:
        temperature: temperature at which tokens are sampled.
        uses_behaviour: whether the update compares behaviour log-probabilities with its own, which are of the whole
            distribution; see :attr:`asyncrl.core.recipe.algorithm.AlgorithmConfig.uses_behaviour`.

    Raises:
        ValueError: naming the episode, if it was sampled in another way.
    """
    used = episode.sampling
    if used.temperature != temperature or (used.truncated and uses_behaviour):
        raise ValueError(
            f"sample {episode.sample_index} of group {episode.group_id}: sampled with temperature {used.temperature:g}, top-p "
            f"{used.top_p:g}, top-k {used.top_k}, min-p {used.min_p:g}; the loss compares log-probabilities at temperature "
            f"{temperature:g} of the whole distribution"
        )


def _prefixes(records: Sequence[BatchRow], rows: Sequence[Trajectory], families: Mapping[RowName, int]) -> dict[range, int]:
    """For each shared prefix: the rows that continue it, and its length."""
    prefixes = {}
    for _, numbers in groupby(range(len(records)), lambda number: families[records[number].name]):
        first, *others = numbers
        alike = range(first, first + 1 + len(others))
        if planned_prefix(records[alike.start : alike.stop]) and (length := shared_prefix(rows[alike.start : alike.stop])):
            prefixes[alike] = length
    return prefixes


class _Stretch(NamedTuple):
    """Tokens ``[start, end)`` of a row, which are laid down as one segment."""

    row: Trajectory
    start: int
    end: int

    @property
    def length(self) -> int:
        return self.end - self.start


def _shared_tokens(rows: Sequence[Trajectory], prefixes: dict[range, int]) -> tuple[int, list[_Stretch]]:
    """The length of the preamble, and each segment that is laid down before the rows."""
    beginning = [rows[continuing.start] for continuing in prefixes]
    preamble = shared_preamble(beginning, list(prefixes.values()))
    segments = [_Stretch(row, preamble, length) for row, length in zip(beginning, prefixes.values(), strict=True)]
    return preamble, [_Stretch(beginning[0], 0, preamble), *segments] if preamble else segments


def _spread_over_turns(rows: Sequence[Trajectory], advantages: Sequence[Sequence[float]]) -> list[float]:
    """The advantage of each turn of each row, also of rows with one for all their turns."""
    return [
        advantage
        for row, of_turns in zip(rows, advantages, strict=True)
        for advantage in (of_turns if len(of_turns) > 1 else [*of_turns] * len(row.turns))
    ]


def _joined(parts: Sequence[np.ndarray], dtype: type) -> np.ndarray:
    """``parts``, any number of arrays [...], end to end as ``dtype``."""
    end_to_end: np.ndarray = np.concatenate([np.empty(0, dtype), *parts])
    return end_to_end.astype(dtype, copy=False)


def _needed(row: Trajectory) -> int:
    """How many leading tokens of the row are needed: those before its last sampled one."""
    sampled = np.flatnonzero(row.loss_mask)
    return int(sampled[-1]) if len(sampled) else len(row)


def _experts(segments: Sequence[_Stretch], routing: Routing, padding: int) -> Tensor:
    """int16 [layers, t, per_token], the experts of each token that is laid down; -1 where none were chosen."""
    parts = [np.empty((0, *routing[1:]), np.int16)]
    chosen = {id(each.row): each.row.experts.chosen() for each in segments if each.row.experts is not None}
    for row, start, end in segments:
        known = chosen[id(row)][start:end]
        parts += (known, np.full((end - start - len(known), *routing[1:]), -1, np.int16))
    parts.append(np.full((padding, *routing[1:]), -1, np.int16))
    return torch.from_numpy(np.ascontiguousarray(np.concatenate(parts).swapaxes(0, 1)))


def _starts(lengths: np.ndarray, first: int) -> np.ndarray:
    """int64 [rows], where each row begins if rows of ``lengths`` are laid end to end, starting at ``first``."""
    starts: np.ndarray = first + np.cumsum(lengths) - lengths
    return starts


def _check_experts(record: BatchRow, row: Trajectory, routing: Routing) -> None:
    """Refuse a row whose tokens' experts are not known, or are those of another model."""
    if row.experts is None:
        raise ValueError(
            f"{record.described}: its engine did not say which experts its tokens went to, and learner.experts.replay needs it; "
            "it was played before the key was set: begin a run of its own with it"
        )
    if row.experts.shape != routing:
        raise ValueError(
            f"{record.described}: its engine's experts are {_told(Routing(*row.experts.shape))}, the model's {_told(routing)}"
        )


def _told(routing: Routing) -> str:
    return f"{routing.per_token} of {routing.experts} in {routing.layers} layers"


def _check(record: BatchRow, row: Trajectory, batch: Batch) -> None:
    """Refuse a row that would otherwise be trained on wrong numbers without any error."""
    name = record.described
    if len(row) != record.length:
        raise ValueError(f"{name}: the payload has {len(row)} tokens, but its record says {record.length}")
    row.check()
    turn_rewards = tuple(turn.reward for turn in row.turns)
    if record.turn_rewards and record.turn_rewards != turn_rewards:
        raise ValueError(f"{name}: its turns have the rewards {turn_rewards}, but its record says {record.turn_rewards}")
    sampled = row.versions()[row.loss_mask]
    fresh = int((sampled >= batch.oldest_version).sum())
    if fresh != record.loss_tokens:
        raise ValueError(
            f"{name}: {fresh} sampled tokens are of version {batch.oldest_version} or newer, but its record says "
            f"{record.loss_tokens}; the loss's denominator would be wrong"
        )
    if len(sampled) and sampled.max() > batch.version:
        raise ValueError(
            f"{name}: a token was sampled by version {sampled.max()}, newer than version {batch.version}, which is being trained"
        )
    if len(row) and row.loss_mask[0]:
        raise ValueError(f"{name}: its first token is marked as sampled; a row must begin with a prompt")
    if not np.isfinite(row.logprobs[row.loss_mask]).all():
        raise ValueError(f"{name}: a behaviour log-probability is not finite")
