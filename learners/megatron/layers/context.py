"""How context-parallel ranks divide the tokens of a packed sequence, and how their results are put together again.

What always holds: each rank has as many tokens, and as much of causal attention's work, as any other, whatever the
rows; and the gathered results are what one rank would have computed, for every token on every rank.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from asyncrl.learners.batches.micro_batch import MicroBatch
from asyncrl.learners.megatron.layers.packed_rows import PackedRows, group_by_length
from asyncrl.learners.megatron.layers.row_moves import place_rows


class Queries(NamedTuple):
    """One chunk of each row of a block, as padded queries.

    Attributes:
        tokens: int64 [q], the indexes of the queries' tokens among this rank's tokens.
        slots: int64 [q], each query's place in the flattened queries [rows * longest].
        longest: length of the longest of the rows' chunks.
        reach: how many of the block's keys the last query may see.
        mask: bool [rows or 1, 1, longest, reach], which keys each query may see.
    """

    tokens: Tensor
    slots: Tensor
    longest: int
    reach: int
    mask: Tensor


class Block(NamedTuple):
    """Neighbouring rows of similar length, with all their keys.

    Attributes:
        rows: number of rows.
        longest: length of the longest row.
        keys: int64 [k], the places of the rows' tokens among those of all ranks, rank after rank.
        slots: int64 [k], each key's place in the flattened keys [rows * longest].
        queries: the queries of this rank's two chunks.
    """

    rows: int
    longest: int
    keys: Tensor
    slots: Tensor
    queries: tuple[Queries, Queries]


@dataclass
class SplitRows(PackedRows):
    """The part of a packed sequence that this rank holds.

    Each row is padded to a multiple of ``2 * ranks`` and cut into ``2 * ranks`` chunks. Rank ``r`` has chunks ``r`` and
    ``2 * ranks - 1 - r``, so every rank has the same share of the causal triangle. ``lengths`` are the lengths of the
    padded rows. A row of padding at the end makes the number of each rank's tokens a multiple of what sequence
    parallelism divides.
    """

    ranks: int = 1
    rank: int = 0

    @classmethod
    def share(cls, lengths: Sequence[int], ranks: int, rank: int, multiple: int, device: torch.device) -> "SplitRows":
        """Divide rows of ``lengths`` and return the part of ``rank``, whose number of tokens is a multiple of
        ``multiple``."""
        pieces = 2 * ranks
        padded = [-(-length // pieces) * pieces for length in lengths]
        additional = next(row for row in range(0, multiple * pieces, pieces) if (sum(padded) + row) // ranks % multiple == 0)
        split = cls.of([*padded, additional] if additional else padded, device)
        # TransformerEngine divides the padded rows by the ranks.
        padded_ends: dict[str, Any] = dict.fromkeys(("cu_seqlens_q_padded", "cu_seqlens_kv_padded"), split.cu_seqlens_q)
        return replace(split, ranks=ranks, rank=rank, **padded_ends)

    @cached_property
    def places(self) -> Tensor:
        """int64 [t / ranks], the place of each of this rank's tokens in the padded sequence."""
        return torch.cat(
            [
                torch.arange(start + chunk * size, start + (chunk + 1) * size)
                for start, size in zip(self._starts(), self._sizes(), strict=True)
                for chunk in self._chunks()
            ]
        )

    def positions(self) -> Tensor:
        """int64 [t / ranks], the place of each of this rank's tokens in its row."""
        return super().positions()[self.places]

    @cached_property
    def blocks(self) -> list[Block]:
        """The rows in order, divided into blocks of similar length. Computed once and shared by all layers."""
        blocks, first = [], 0
        for group in group_by_length(self.lengths):
            blocks.append(self._block(range(first, first + len(group))))
            first += len(group)
        return blocks

    def _starts(self) -> list[int]:
        starts: list[int] = self.cu_seqlens_q.tolist()[:-1]
        return starts

    def _sizes(self) -> list[int]:
        """The length of each row's chunks."""
        return [length // (2 * self.ranks) for length in self.lengths]

    def _chunks(self) -> tuple[int, int]:
        return self.rank, 2 * self.ranks - 1 - self.rank

    def _block(self, rows: range) -> Block:
        device = self.cu_seqlens_q.device
        starts, sizes = self._starts(), self._sizes()
        tokens_of_rank = sum(self.lengths) // self.ranks
        size = max(sizes[row] for row in rows)
        longest = 2 * self.ranks * size
        keys, slots = [], []
        for number, row in enumerate(rows):
            places = torch.arange(self.lengths[row])
            chunk_of, offset = places // sizes[row], places % sizes[row]
            is_late = chunk_of >= self.ranks
            holder = torch.where(is_late, 2 * self.ranks - 1 - chunk_of, chunk_of)
            keys.append(holder * tokens_of_rank + starts[row] // self.ranks + is_late * sizes[row] + offset)
            slots.append(number * longest + places)
        queries = []
        for number, chunk in enumerate(self._chunks()):
            begins = [starts[row] // self.ranks + number * sizes[row] for row in rows]
            reach = (chunk + 1) * size
            first_places = torch.tensor([chunk * sizes[row] for row in rows])
            # Rows of equal length share one mask.
            first_places = first_places[:1] if len({sizes[row] for row in rows}) == 1 else first_places
            places = first_places[:, None] + torch.arange(size)
            tokens = [torch.arange(begin, begin + sizes[row]) for begin, row in zip(begins, rows, strict=True)]
            taken = [torch.arange(place * size, place * size + sizes[row]) for place, row in enumerate(rows)]
            queries.append(
                Queries(
                    tokens=torch.cat(tokens).to(device),
                    slots=torch.cat(taken).to(device),
                    longest=size,
                    reach=reach,
                    mask=(torch.arange(reach) <= places[:, None, :, None]).to(device),
                )
            )
        return Block(len(rows), longest, torch.cat(keys).to(device), torch.cat(slots).to(device), (queries[0], queries[1]))


class RankPart(NamedTuple):
    """The part of a micro-batch that this rank computes.

    Attributes:
        token_ids: int64 [t / ranks].
        rows: how the rows lie in them.
        positions: int64 [m], the places of the tokens before the sampled ones.
        targets: int64 [m], those sampled tokens.
        sampled: int64 [m], their indexes among the micro-batch's ``n`` sampled tokens.
        total: ``n``.
        places: int64 [t / ranks], the place of each token in the micro-batch; -1 for padding of this rank's own.
    """

    token_ids: Tensor
    rows: PackedRows
    positions: Tensor
    targets: Tensor
    sampled: Tensor
    total: int
    places: Tensor

    def whole(self, values: Tensor, group: dist.ProcessGroup) -> Tensor:
        """Combine the values [m] of all ranks into [n]. Collective. Each rank gets the gradient of its own values."""
        whole: Tensor = values if group.size() == 1 else _Whole.apply(values, self.sampled, self.total, group)
        return whole


def part_of(batch: MicroBatch, *, ranks: int, rank: int, multiple: int) -> RankPart:
    """Return the part of a micro-batch that context-parallel rank ``rank`` of ``ranks`` computes.

    Args:
        batch: it has no prefixes where several ranks divide the rows.
        multiple: what the number of the part's tokens must be divisible by.
    """
    token_ids, lengths, positions, targets = batch.token_ids, batch.lengths, batch.positions, batch.targets
    device = token_ids.device
    if ranks == 1:
        everything = torch.arange(len(targets), device=device)
        rows = PackedRows.of(lengths, device, batch.prefixes, batch.preamble)
        here = torch.arange(len(token_ids), device=device)
        return RankPart(token_ids, rows, positions, targets, everything, len(targets), here)
    split = SplitRows.share(lengths, ranks, rank, multiple, device)
    starts = split.cu_seqlens_q.tolist()
    padded_places = torch.cat([torch.arange(start, start + length) for start, length in zip(starts, lengths, strict=False)])
    padded_places = padded_places.to(device)
    places = split.places.to(device)
    mine = torch.full((starts[-1],), -1, device=device)
    mine[places] = torch.arange(len(places), device=device)
    local = mine[padded_places[positions]]
    sampled = (local >= 0).nonzero().flatten()
    padded_ids = place_rows(token_ids, padded_places, starts[-1])
    there = torch.full((starts[-1],), -1, device=device)
    there[padded_places] = torch.arange(len(token_ids), device=device)
    return RankPart(padded_ids[places], split, local[sampled], targets[sampled], sampled, len(targets), there[places])


class _Whole(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, sampled: Tensor, count: int, group: dist.ProcessGroup) -> Tensor:
        ctx.save_for_backward(sampled)
        # An unused output gets None instead of a gradient of zeros, so that no costly backward is run for it.
        ctx.set_materialize_grads(False)
        whole = values.new_zeros(count).index_copy_(0, sampled, values)
        dist.all_reduce(whole, group=group)
        return whole

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None) -> tuple[Tensor | None, None, None, None]:
        (sampled,) = ctx.saved_tensors
        return None if grad is None else grad.index_select(0, sampled), None, None, None
