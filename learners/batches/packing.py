"""Decides which rows each data-parallel rank trains, in which micro-batches. Pure planning; the same answer on every
rank.

Rows of a group that start with the same tokens, a family, are kept together, as far as the token budget and an even load of the
ranks allow, because a micro-batch computes their shared prefix only once. Tokens are counted as often as they are
computed, but for a preamble of several groups, which is known only once the payload is: it is counted with each group's prefix.

What always holds of a plan:
* every row of the batch is in it exactly once;
* every data-parallel rank has the same number of micro-batches, at least one, as the pipeline's schedule needs; if rows
  are few and long, some may be empty;
* no micro-batch computes more than ``micro_batch_tokens`` tokens;
* tokens are balanced by assigning the largest piece first, where a piece is one row, or rows of one family, with a shared
  prefix: the heaviest micro-batch is within 4/3 of the best possible for these pieces (Graham 1969);
* the plan depends only on the batch's rows and the arguments;
* in each micro-batch, rows with a shared prefix are neighbours and come before all others; both these and the others
  are sorted by length, longest first, so that rows of similar length are neighbours.
"""

import heapq
from collections.abc import Sequence
from math import ceil
from typing import NamedTuple

from asyncrl.core.batch import Batch
from asyncrl.core.errors import RecipeError
from asyncrl.core.recipe.learner import LearnerConfig
from asyncrl.learners.batches.prefixes import families, planned_prefix

FP8_MULTIPLE = 16
"""TransformerEngine multiplies matrices in fp8 only if their dimensions (tokens and channels) are multiples of this."""

MicroBatchRows = list[int]
"""Indexes into ``Batch.rows``."""

_PIECES_OF_A_FAIR_SHARE = (1, 2, 4)
"""A plan is made for each of these numbers, and the most even plan is taken. A piece is at most a rank's fair share of
the tokens divided by the number (or one row). Every piece computes its prefix again, but few large pieces load ranks
unevenly."""


def token_multiple(config: LearnerConfig) -> int:
    """Return what the number of a micro-batch's tokens must be divisible by, since tensor-parallel ranks divide them."""
    return config.tensor_parallel * (1 if config.fp8 == "none" else FP8_MULTIPLE)


class _Family(NamedTuple):
    """Rows that share a prefix, or a single row.

    Attributes:
        rows: their indexes in the batch, longest first.
        prefix: how many tokens they share; 0 for a single row.
    """

    rows: MicroBatchRows
    prefix: int


def plan(batch: Batch, data_parallel: int, micro_batch_tokens: int, *, share_prefixes: bool) -> list[list[MicroBatchRows]]:
    """Plan the micro-batches of each data-parallel rank, in the order in which they are trained.

    The result is the most even of a few plans. Each of these has as few micro-batches as the token budget and the
    greedy assignment allow.

    Args:
        batch: the batch.
        data_parallel: number of data-parallel ranks.
        micro_batch_tokens: the token budget of a micro-batch.
        share_prefixes: whether a prefix that rows of a group have in common is computed once in a micro-batch.

    Raises:
        RecipeError: if one row alone is longer than the budget.
    """
    lengths = [row.length for row in batch.rows]
    longest = max(lengths, default=0)
    if longest > micro_batch_tokens:
        row = batch.rows[lengths.index(longest)]
        raise RecipeError(
            "learner.micro_batch_tokens",
            f"{micro_batch_tokens} tokens cannot hold {row.described}, which has {longest}",
            f"set it to at least {longest}, best to model.max_context or more",
        )
    divided = _families(batch, lengths, share_prefixes)
    planner = _Planner(lengths, divided, data_parallel, micro_batch_tokens)
    fair_share = planner.tokens(range(len(lengths))) / data_parallel
    # A single rank cannot be loaded unevenly, and families of one row cannot be cut.
    choices = _PIECES_OF_A_FAIR_SHARE if data_parallel > 1 and len(divided) < len(lengths) else (1,)
    limits = [max(longest, min(micro_batch_tokens, ceil(fair_share / pieces))) for pieces in choices]
    return min((planner.with_pieces(limit) for limit in dict.fromkeys(limits)), key=planner.heaviest_rank)


def _families(batch: Batch, lengths: Sequence[int], share_prefixes: bool) -> list[_Family]:
    """Divide the rows of the batch into families: rows of a group that share a prefix, or a single row."""
    rows = batch.rows
    divided = families(rows) if share_prefixes else [[number] for number in range(len(rows))]
    return [
        _Family(sorted(numbers, key=lambda row: (-lengths[row], row)), planned_prefix([rows[number] for number in numbers]))
        for numbers in divided
    ]


class _Planner:
    """Makes plans for one batch with pieces of different sizes.

    Args:
        lengths: tokens of each row.
        families: see :func:`_families`.
        data_parallel, micro_batch_tokens: see :func:`plan`.
    """

    def __init__(self, lengths: Sequence[int], families: Sequence[_Family], data_parallel: int, micro_batch_tokens: int) -> None:
        self._lengths, self._families = lengths, families
        self._data_parallel, self._micro_batch_tokens = data_parallel, micro_batch_tokens
        self._family_of = {row: number for number, family in enumerate(families) for row in family.rows}

    def tokens(self, rows: Sequence[int]) -> int:
        """Number of tokens that are computed if ``rows`` are in one micro-batch."""
        prefix_of = {family: self._families[family].prefix for family in map(self._family_of.__getitem__, rows)}
        own = sum(self._lengths[row] - prefix_of[self._family_of[row]] for row in rows)
        return own + sum(prefix_of.values())

    def heaviest_rank(self, ranks: Sequence[Sequence[MicroBatchRows]]) -> int:
        """Number of tokens that the most loaded rank computes."""
        return max(sum(map(self.tokens, rank)) for rank in ranks)

    def with_pieces(self, limit: int) -> list[list[MicroBatchRows]]:
        """Make a plan that keeps rows of a family together in pieces of at most ``limit`` tokens; ``limit`` is at least
        the longest row's length."""
        pieces = [piece for family in self._families for piece in self._cut(family, limit)]
        sizes = [self.tokens(piece) for piece in pieces]
        # Two pieces that each fill more than half of a micro-batch do not fit into one.
        large = sum(2 * size > self._micro_batch_tokens for size in sizes)
        micro_batches = max(1, ceil(max(sum(sizes) / self._micro_batch_tokens, large) / self._data_parallel))
        while True:
            parts = _spread(sizes, micro_batches * self._data_parallel)
            if all(sum(sizes[piece] for piece in part) <= self._micro_batch_tokens for part in parts):
                return self._deal([self._in_order([row for piece in part for row in pieces[piece]]) for part in parts])
            micro_batches += 1

    def _cut(self, family: _Family, limit: int) -> list[MicroBatchRows]:
        """Cut the family's rows into as few pieces of at most ``limit`` tokens as the greedy assignment allows."""
        if len(family.rows) == 1:
            return [family.rows]
        own = [self._lengths[row] - family.prefix for row in family.rows]
        for count in range(ceil(sum(own) / (limit - family.prefix)), len(family.rows)):
            parts = _spread(own, count)
            if all(family.prefix + sum(own[row] for row in part) <= limit for part in parts):
                return [[family.rows[row] for row in part] for part in parts]
        return [[row] for row in family.rows]

    def _in_order(self, part: MicroBatchRows) -> MicroBatchRows:
        """Sort the rows of a micro-batch as the module's docstring says."""
        rows: dict[int, MicroBatchRows] = {}
        for row in sorted(part, key=lambda row: (-self._lengths[row], row)):
            rows.setdefault(self._family_of[row], []).append(row)
        alike = [row for family in rows.values() if len(family) > 1 for row in family]
        return alike + [row for family in rows.values() if len(family) == 1 for row in family]

    def _deal(self, parts: list[MicroBatchRows]) -> list[list[MicroBatchRows]]:
        """Give each rank equally many parts, heaviest first. The order of the ranks is reversed in each round."""
        heaviest_first = sorted(parts, key=lambda part: -self.tokens(part))
        ranks: list[list[MicroBatchRows]] = [[] for _ in range(self._data_parallel)]
        for start in range(0, len(parts), self._data_parallel):
            one_each = heaviest_first[start : start + self._data_parallel]
            if start // self._data_parallel % 2:
                one_each.reverse()
            for rank, part in zip(ranks, one_each, strict=True):
                rank.append(part)
        return ranks


def _spread(sizes: Sequence[int], count: int) -> list[list[int]]:
    """Divide items into ``count`` parts, largest item first, each into the part that is lightest so far. Returns the
    items' indexes."""
    parts: list[list[int]] = [[] for _ in range(count)]
    lightest = [(0, part) for part in range(count)]
    for item in sorted(range(len(sizes)), key=lambda item: (-sizes[item], item)):
        weight, part = lightest[0]
        parts[part].append(item)
        heapq.heapreplace(lightest, (weight + sizes[item], part))
    return parts
