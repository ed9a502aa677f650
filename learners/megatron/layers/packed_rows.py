"""How a micro-batch's segments lie in the packed sequence, in the form that Megatron's layers take: rows, shared
prefixes, and the rows that continue them."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate, islice
from typing import TYPE_CHECKING, NamedTuple, Self

import torch
from megatron.core.packed_seq_params import PackedSeqParams
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

from asyncrl.learners.batches.prefixes import tokens_before
from asyncrl.learners.megatron.layers.row_moves import place_rows, take_rows

if TYPE_CHECKING:
    from asyncrl.learners.megatron.layers.routing import TokenRouting

_LEAST_FILL = 0.8
"""A segment shorter than this share of the longest in its block starts another block. So at most a fifth of a block is
padding, and there are few blocks: among sorted segments, their number grows with the logarithm of longest / shortest."""


class Block(NamedTuple):
    """Segments of similar length, each padded to the longest.

    Attributes:
        rows: number of segments.
        longest: length of the longest.
    """

    rows: int
    longest: int

    @property
    def tokens(self) -> int:
        """Number of tokens, with padding."""
        return self.rows * self.longest


class PaddedSegments(NamedTuple):
    """The segments of a packed sequence, sorted by length and padded, so that few blocks hold them all, wherever they lie.

    Attributes:
        blocks: the blocks, end to end.
        slots: int64 [t], the place of each token of the packed sequence in the padded one; None if both are the same, because
            all segments are equally long.
    """

    blocks: tuple[Block, ...]
    slots: Tensor | None

    def pad(self, tensor: Tensor) -> list[Tensor]:
        """The part of ``tensor`` [t, heads, ...] in each block, [rows, heads, longest, ...], with zeros for padding."""
        tokens = [block.tokens for block in self.blocks]
        parts = (tensor if self.slots is None else place_rows(tensor, self.slots, sum(tokens))).split(tokens)
        return [part.unflatten(0, block).transpose(1, 2) for part, block in zip(parts, self.blocks, strict=True)]

    def unpad(self, of_blocks: Sequence[Tensor]) -> Tensor:
        """Return the tokens [t, heads, ...] of what was computed for each block, [rows, heads, longest, ...]."""
        parts = [each.transpose(1, 2).flatten(0, 1) for each in of_blocks]
        padded = torch.cat(parts) if len(parts) > 1 else parts[0]
        return padded if self.slots is None else take_rows(padded, self.slots)


@dataclass
class PackedRows(PackedSeqParams):
    """Megatron's description of a packed sequence (``thd``), with what our own attention needs to know of it.

    Megatron takes each segment for a row. Where rows continue a shared prefix, only our own attention knows what they
    see.

    Attributes:
        lengths, prefixes, preamble: see :class:`~asyncrl.learners.batches.micro_batch.MicroBatch`.
        rotation: cosine and sine of the rotary embedding, see :meth:`rotate_by`; None if Megatron's layer applies it.
        predicting: int64 [n], the only tokens whose hidden states are needed from the last layer; None if the layer
            gives them all.
        flexible_masks: the masks of FlexAttention by the window that a layer sees, 0 for all that is before a token; each is made
            by the first layer that needs it.
        routing: what routers of experts are told, a :class:`.routing.TokenRouting`; None if the model has none.
    """

    lengths: tuple[int, ...] = ()
    prefixes: tuple[range, ...] = ()
    preamble: int = 0
    rotation: tuple[Tensor, Tensor] | None = None
    predicting: Tensor | None = None
    flexible_masks: dict[int, BlockMask] = field(default_factory=dict)
    routing: "TokenRouting | None" = None

    @classmethod
    def of(cls, lengths: Sequence[int], device: torch.device, prefixes: tuple[range, ...] = (), preamble: int = 0) -> Self:
        """Describe segments of ``lengths``, laid end to end; ``prefixes`` and ``preamble`` as in
        :class:`~asyncrl.learners.batches.micro_batch.MicroBatch`.

        ``max_seqlen`` must be the length of the longest segment and nothing larger. If a rotary table is as long as the
        whole packed sequence, Megatron assumes that it has a position for each token of the sequence, and does not
        start rows at position 0.
        """
        ends = torch.tensor([0, *accumulate(lengths)], dtype=torch.int32, device=device)
        return cls(
            qkv_format="thd",
            cu_seqlens_q=ends,
            cu_seqlens_kv=ends,
            max_seqlen_q=max(lengths),
            max_seqlen_kv=max(lengths),
            lengths=tuple(lengths),
            prefixes=prefixes,
            preamble=preamble,
        )

    def rotate_by(self, angles: Tensor, dtype: torch.dtype, scale: float) -> None:
        """Set the cosine and sine by which attention rotates each token's queries and keys, both [t, 1, dim / 2] in
        ``dtype``; on a CPU they are rounded to it, and float32.

        Args:
            angles: float32 [longest_row, dim / 2], for each position in a row.
            dtype: data type of the result.
            scale: factor of cosine and sine.
        """
        positions = self.positions().to(angles.device)
        cosine, sine = (values[positions].unsqueeze(1).to(dtype) for values in (angles.cos() * scale, angles.sin() * scale))
        if not angles.is_cuda:
            cosine, sine = cosine.float(), sine.float()
        self.rotation = cosine, sine

    def positions(self) -> Tensor:
        """int64 [t], the place of each token in its row."""
        before = tokens_before(self.lengths, self.prefixes, self.preamble)
        return torch.cat([torch.arange(start, start + length) for start, length in zip(before, self.lengths, strict=True)])

    @cached_property
    def segment_table(self) -> Tensor:
        """The segments as :func:`segment_table` describes them; computed once and shared by all layers."""
        return segment_table(self.lengths, self.prefixes, self.preamble)

    @property
    def longest_row(self) -> int:
        """Number of tokens in the longest row, including those of its preamble and shared prefix."""
        before = tokens_before(self.lengths, self.prefixes, self.preamble)
        return max(start + length for start, length in zip(before, self.lengths, strict=True))

    @cached_property
    def padded_segments(self) -> PaddedSegments:
        """All segments in a padded layout. Computed once and shared by all layers."""
        if len(set(self.lengths)) == 1:
            return PaddedSegments((Block(len(self.lengths), self.lengths[0]),), None)
        order = sorted(range(len(self.lengths)), key=lambda number: -self.lengths[number])
        begins = [0] * len(order)
        blocks = []
        start, remaining = 0, iter(order)
        for group in group_by_length([self.lengths[number] for number in order]):
            blocks.append(Block(len(group), group[0]))
            for number in islice(remaining, len(group)):
                begins[number], start = start, start + group[0]
        slots = torch.cat([torch.arange(begin, begin + length) for begin, length in zip(begins, self.lengths, strict=True)])
        return PaddedSegments(tuple(blocks), slots.to(self.cu_seqlens_q.device))


def group_by_length(lengths: Sequence[int]) -> list[list[int]]:
    """Divide ``lengths`` in order, starting a new group where they differ too much for one block."""
    groups: list[list[int]] = []
    shortest = longest = 0
    for length in lengths:
        shortest, longest = min(shortest, length), max(longest, length)
        if shortest < _LEAST_FILL * longest:
            groups.append([])
            shortest = longest = length
        groups[-1].append(length)
    return groups


def segment_table(lengths: Sequence[int], prefixes: Sequence[range], preamble: int) -> Tensor:
    """Describe segments by what attention of our own needs to know.

    Args:
        lengths, prefixes, preamble: see :class:`~asyncrl.learners.batches.micro_batch.MicroBatch`.

    Returns:
        int64 [segments, 6]: the number of each segment's first token, how many it has, and the same of up to two segments that it
        continues.
    """
    starts, first = [0, *accumulate(lengths)], int(preamble > 0)
    before = [[0, 0, 0, 0] for _ in lengths]
    for prefix, rows in enumerate(prefixes, first):
        before[prefix][:2] = 0, preamble
        for row in rows:
            before[first + len(prefixes) + row] = [0, preamble, starts[prefix], lengths[prefix]]
    return torch.tensor([[start, length, *earlier] for start, length, earlier in zip(starts, lengths, before, strict=False)])
