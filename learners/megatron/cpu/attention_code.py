"""Machine code for attention on a CPU: over a segment's own tokens, causally, and over those that it continues.

A tile of the code is a few tokens of a segment, for all heads that share a key head: each lane of a vector is one query, and what
the queries are multiplied with is read from where it lies, one number for all lanes. So keys and values are neither copied,
repeated nor padded, and a tile reads no key that none of its queries sees.

The backward pass computes the weights again, from each query's largest score and sum of weights, as FlashAttention does (Dao et
al. 2022, arXiv:2205.14135).

What always holds: tiles of one key head are computed in order, so its gradients do not depend on what is computed beside them.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import NamedTuple

from llvmlite import ir

from asyncrl.learners.megatron.cpu.vector_code import (
    FLOAT,
    INT,
    INTS,
    LANES,
    LN_2,
    LOG2_E,
    NARROW,
    POINTER,
    Value,
    VectorCode,
    functions_of,
    has_wide_registers,
)

_TRANSPOSE = "transpose"
"""Name of a function that reads a square of ``LANES`` rows at an address, with so many numbers from one row to the next, and
writes its columns as rows to another such place."""
_LEAST = -1e30
"""The score of a key that a query does not see."""
_SEGMENT_FIELDS = 6
_RANGES = 4
"""Ranges of keys that a tile sees. Each of its queries sees only a part of the last."""


class Heads(NamedTuple):
    """The sizes that the code is made for.

    Attributes:
        dim: channels of a head, a multiple of ``LANES``.
        together: heads of a tile, at most ``LANES``; all have the same keys.
    """

    dim: int
    together: int

    @property
    def tokens(self) -> int:
        """Tokens of a tile."""
        return LANES // self.together


class Range(NamedTuple):
    """Neighbouring keys: the number of the first token, and how many there are."""

    first: Value
    count: Value


class _Queries:
    """The queries of a tile: its first token, its first head, and how many tokens it has."""

    def __init__(self, code: VectorCode, heads: Heads, total: Value, first: Value, head: Value, count: Value) -> None:
        """``total`` is the number of heads."""
        self._code, self._heads, self._total = code, heads, total
        self._first, self._head, self._count = first, head, count

    def load(self, source: Value, rows: Value, columns: Value, factor: Value | None = None) -> None:
        """Write the tile's part of ``source`` [t, heads, dim] to ``rows`` [LANES, dim] and ``columns`` [dim, LANES], with zeros
        where the tile has fewer queries."""
        code, dim = self._code, self._heads.dim
        with code.loop(0, LANES * dim, LANES) as number:
            code.write(code.vector(0.0), code.at(rows, number))
        with self._each() as (lane, place), code.loop(0, dim, LANES) as start:
            values = code.read(code.at(source, (place, dim), start))
            code.write(values if factor is None else code.b.fmul(values, factor), code.at(rows, (lane, dim), start))
        with code.loop(0, dim, LANES) as start:
            code.call(_TRANSPOSE, code.at(rows, start), code.integer(dim), code.at(columns, (start, LANES)), code.integer(LANES))

    def store(self, columns: Value, rows: Value, target: Value) -> None:
        """Write ``columns`` [dim, LANES] to ``rows`` [LANES, dim], and those to the tile's part of ``target`` [t, heads, dim]."""
        code, dim = self._code, self._heads.dim
        with code.loop(0, dim, LANES) as start:
            code.call(_TRANSPOSE, code.at(columns, (start, LANES)), code.integer(LANES), code.at(rows, start), code.integer(dim))
        with self._each() as (lane, place), code.loop(0, dim, LANES) as start:
            code.write(code.read(code.at(rows, (lane, dim), start)), code.at(target, (place, dim), start))

    def lanes(self, source: Value) -> Value:
        """The tile's part of ``source`` [t, heads], with zeros where the tile has fewer queries."""
        code, table = self._code, self._code.table(1, LANES)
        code.write(code.vector(0.0), table)
        with self._each() as (lane, place):
            code.b.store(code.b.load(code.at(source, place)), code.at(table, lane))
        return code.read(table)

    def store_lanes(self, values: Value, target: Value) -> None:
        """Write one number for each query to the tile's part of ``target`` [t, heads]."""
        code, table = self._code, self._code.table(1, LANES)
        code.write(values, table)
        with self._each() as (lane, place):
            code.b.store(code.b.load(code.at(table, lane)), code.at(target, place))

    @contextmanager
    def _each(self) -> Iterator[tuple[Value, Value]]:
        """Repeat the code within for each query, with its lane, and its place among all heads of all tokens."""
        code, b, together = self._code, self._code.b, self._code.integer(self._heads.together)
        with code.loop(0, self._count) as token:
            head = b.add(b.mul(b.add(self._first, token), self._total), self._head)
            with code.loop(0, together) as of_tile:
                yield b.add(b.mul(token, together), of_tile), b.add(head, of_tile)


class _Keys:
    """The keys that a tile sees, in ranges: up to two segments that its own continues, what of its own comes before the tile,
    and the tile's own tokens, of which each query sees those up to itself. All are numbered in this order."""

    def __init__(self, code: VectorCode, heads: Heads, groups: Value) -> None:
        """``groups`` is the number of key heads."""
        self._code, self._heads, self._groups = code, heads, groups
        self._table = code.table(_RANGES, 2, INT)
        self._group, self._position = code.variable(INT), code.variable(INT)

    def set(self, group: Value, ranges: Sequence[Range]) -> None:
        """Set the key head and the ranges."""
        b = self._code.b
        b.store(group, self._group)
        for number, value in enumerate(value for keys in ranges for value in keys):
            b.store(value, self._code.at(self._table, number))

    @contextmanager
    def ranges(self) -> Iterator[tuple[Range, Value, Value]]:
        """Repeat the code within for each range, with the number of its first key, and whether queries see only a part of it."""
        code, b = self._code, self._code.b
        b.store(code.integer(0), self._position)
        with code.loop(0, _RANGES) as number:
            keys = Range(*(b.load(code.at(self._table, (number, 2), field)) for field in range(2)))
            position = b.load(self._position)
            yield keys, position, b.icmp_signed("==", number, code.integer(_RANGES - 1))
            b.store(b.add(position, keys.count), self._position)

    @property
    def count(self) -> Value:
        """How many keys there are; known after all ranges."""
        return self._code.b.load(self._position)

    def row(self, token: Value) -> Value:
        """Where the token's row begins in a tensor [t, key heads, dim]."""
        b = self._code.b
        return b.mul(b.add(b.mul(token, self._groups), b.load(self._group)), self._code.integer(self._heads.dim))

    def each(self, at_once: int, body: "_OfKeys") -> None:
        """Write ``body`` for ``at_once`` keys, in a loop over all. The last round of a range repeats
        its last key where there are fewer left; ``body`` must add nothing for the repeats."""
        code, b = self._code, self._code.b
        of_lane = ir.Constant(INTS, [lane // self._heads.together for lane in range(LANES)])
        all_lanes = ir.Constant(INTS, [LANES] * LANES)
        with self.ranges() as (keys, position, in_part):
            until = b.select(in_part, of_lane, all_lanes)
            with code.loop(0, keys.count, at_once) as done:
                wanted = [b.add(done, code.integer(number)) for number in range(at_once)]
                places = [code.lower(place, b.sub(keys.count, code.integer(1))) for place in wanted]
                limited = [b.select(in_part, b.trunc(place, NARROW), ir.Constant(NARROW, 0)) for place in places]
                body(
                    [self.row(b.add(keys.first, place)) for place in places],
                    [b.add(position, place) for place in wanted],
                    [b.icmp_signed("<", place, keys.count) for place in wanted],
                    [b.icmp_signed("<=", code.everywhere(place), until) for place in limited],
                )


_OfKeys = Callable[[list[Value], list[Value], list[Value], list[Value]], None]
"""Writes code for some keys: where their rows begin, their numbers, whether each is a key of its own (not the last one repeated),
and which lanes see it."""


class _Pass:
    """What the forward and the backward pass have in common."""

    def __init__(self, code: VectorCode, heads: Heads, segments: Value, sizes: Sequence[Value], scale: Value) -> None:
        """``sizes``: the number of segments, of heads and of key heads; and which tiles of heads to compute, first and end."""
        self.code, self._heads, self._segments = code, heads, segments
        self._count, self._total, self._groups, self._begin, self._end = sizes
        self.keys = _Keys(code, heads, self._groups)
        self.rows, self.columns = code.table(LANES, heads.dim), code.table(heads.dim, LANES)
        self.scale = code.everywhere(code.b.fmul(scale, ir.Constant(FLOAT, LOG2_E)))
        """What queries are multiplied with, so that weights are powers of 2."""

    @contextmanager
    def tiles(self) -> Iterator[_Queries]:
        """Repeat the code within for each tile, whose keys are set."""
        code, b, heads = self.code, self.code.b, self._heads
        with code.loop(self._begin, self._end) as block, code.loop(0, self._count) as segment:
            head = b.mul(block, code.integer(heads.together))
            start, length, *before = (
                b.load(code.at(self._segments, (segment, _SEGMENT_FIELDS), field)) for field in range(_SEGMENT_FIELDS)
            )
            with code.loop(0, length, heads.tokens) as done:
                first, count = b.add(start, done), code.lower(heads.tokens, b.sub(length, done))
                ranges = (Range(*before[:2]), Range(*before[2:]), Range(start, done), Range(first, count))
                self.keys.set(b.sdiv(b.mul(head, self._groups), self._total), ranges)
                yield _Queries(code, heads, self._total, first, head, count)

    def multiply(self, operands: Sequence[tuple[Value, Value, list[Value]]], rows: list[Value]) -> None:
        """Set variables to the products of each lane's query with ``rows`` of a tensor, for each of ``operands``: columns of
        queries, a tensor, and a variable for each row."""
        code, b, unrolled = self.code, self.code.b, 4
        for _, _, places in operands:
            for place in places:
                b.store(code.vector(0.0), place)
        with code.loop(0, self._heads.dim, unrolled) as start:
            for channel in range(unrolled):
                for columns, tensor, places in operands:
                    queries = code.read(code.at(columns, (start, LANES), channel * LANES))
                    for row, place in zip(rows, places, strict=True):
                        number = b.load(code.at(tensor, row, start, channel))
                        code.add_product(code.everywhere(number), queries, place)

    def sum_rows(self, weights: Value, tensor: Value, factor: Value) -> None:
        """Set the tile's columns to ``factor`` times the sum of the keys' rows of ``tensor``, weighted by ``weights``
        [keys, LANES]."""
        code, b = self.code, self.code.b
        sums = code.variables(16 if has_wide_registers() else 4)
        with code.loop(0, self._heads.dim, len(sums)) as start:
            for place in sums:
                b.store(code.vector(0.0), place)
            with self.keys.ranges() as (keys, position, _), code.loop(0, keys.count) as done:
                weight = code.read(code.at(weights, (b.add(position, done), LANES)))
                row = self.keys.row(b.add(keys.first, done))
                for channel, place in enumerate(sums):
                    number = b.load(code.at(tensor, row, start, channel))
                    code.add_product(code.everywhere(number), weight, place)
            for channel, place in enumerate(sums):
                code.write(b.fmul(b.load(place), factor), code.at(self.columns, (start, LANES), channel * LANES))

    def add_to_rows(self, factors: Sequence[Value], rows: Sequence[Value], targets: Sequence[Value]) -> None:
        """For each of ``targets`` [t, key heads, dim]: add to each key's row the sum of a table's ``rows`` [LANES, dim], weighted
        by that key's ``factors`` [keys, LANES]."""
        code, b, dim = self.code, self.code.b, self._heads.dim
        at_once, unrolled = 4 if has_wide_registers() else 2, 4
        sums = [code.variables(at_once) for _ in targets]

        def add(keys: list[Value], numbers: list[Value], real: list[Value], _: list[Value]) -> None:
            with code.loop(0, dim, LANES) as start:
                for target, places in zip(targets, sums, strict=True):
                    for key, place in zip(keys, places, strict=True):
                        b.store(code.read(code.at(target, key, start)), place)
                with code.loop(0, LANES, unrolled) as first:
                    for row in (b.add(first, code.integer(further)) for further in range(unrolled)):
                        for table, its_rows, places in zip(factors, rows, sums, strict=True):
                            values = code.read(code.at(its_rows, start, (row, dim)))
                            for number, place in zip(numbers, places, strict=True):
                                factor = b.load(code.at(table, (number, LANES), row))
                                code.add_product(code.everywhere(factor), values, place)
                for key, is_real, *places in zip(keys, real, *sums, strict=True):
                    with b.if_then(is_real):
                        for target, place in zip(targets, places, strict=True):
                            code.write(b.load(place), code.at(target, key, start))

        self.keys.each(at_once, add)


def _write_forward(module: ir.Module, heads: Heads) -> None:
    code = VectorCode(module, "forward", [*[POINTER] * 6, INT.as_pointer(), POINTER, *[INT] * 5, FLOAT])
    query, key, value, output, peaks, shares, segments, scores, *sizes, scale = code.arguments
    b = code.b
    whole = _Pass(code, heads, segments, sizes, scale)
    products = code.variables(8 if has_wide_registers() else 4)
    peak, total = code.variables(2)

    def score(keys: list[Value], numbers: list[Value], _: list[Value], seen: list[Value]) -> None:
        whole.multiply([(whole.columns, key, products)], keys)
        for place, number, sees in zip(products, numbers, seen, strict=True):
            found = b.select(sees, b.load(place), code.vector(_LEAST))
            b.store(code.larger(b.load(peak), found), peak)
            code.write(found, code.at(scores, (number, LANES)))

    with whole.tiles() as queries:
        queries.load(query, whole.rows, whole.columns, whole.scale)
        b.store(code.vector(_LEAST), peak)
        b.store(code.vector(0.0), total)
        whole.keys.each(len(products), score)
        with code.loop(0, whole.keys.count) as number:
            place = code.at(scores, (number, LANES))
            weight = code.exp2(b.fsub(code.read(place), b.load(peak)))
            b.store(b.fadd(b.load(total), weight), total)
            code.write(weight, place)
        share = b.fdiv(code.vector(1.0), b.load(total))
        whole.sum_rows(scores, value, share)
        queries.store(whole.columns, whole.rows, output)
        queries.store_lanes(b.load(peak), peaks)
        queries.store_lanes(share, shares)
    code.end()


def _write_backward(module: ir.Module, heads: Heads) -> None:
    code = VectorCode(module, "backward", [*[POINTER] * 10, INT.as_pointer(), *[POINTER] * 2, *[INT] * 5, FLOAT])
    query, key, value, grad, slopes, peaks, shares, *of_operands, segments, weights, changes = code.arguments[:13]
    of_query, of_key, of_value = of_operands
    *sizes, scale = code.arguments[13:]
    b = code.b
    whole = _Pass(code, heads, segments, sizes, scale)
    grad_rows, grad_columns = code.table(LANES, heads.dim), code.table(heads.dim, LANES)
    at_once = 4 if has_wide_registers() else 2
    scores, of_weights = code.variables(at_once), code.variables(at_once)
    peak, share, slope = code.variables(3)

    def score(keys: list[Value], numbers: list[Value], _: list[Value], seen: list[Value]) -> None:
        whole.multiply([(whole.columns, key, scores), (grad_columns, value, of_weights)], keys)
        for place, of_weight, number, sees in zip(scores, of_weights, numbers, seen, strict=True):
            code.write(b.select(sees, b.load(place), code.vector(_LEAST)), code.at(weights, (number, LANES)))
            code.write(b.load(of_weight), code.at(changes, (number, LANES)))

    with whole.tiles() as queries:
        queries.load(query, whole.rows, whole.columns, whole.scale)
        queries.load(grad, grad_rows, grad_columns)
        for place, source in ((peak, peaks), (share, shares), (slope, slopes)):
            b.store(queries.lanes(source), place)
        whole.keys.each(at_once, score)
        with code.loop(0, whole.keys.count) as number:
            weight_at, change_at = (code.at(table, (number, LANES)) for table in (weights, changes))
            weight = b.fmul(code.exp2(b.fsub(code.read(weight_at), b.load(peak))), b.load(share))
            # The gradient by the score, which is the exponent of a power of 2.
            change = b.fmul(b.fmul(weight, code.vector(LN_2)), b.fsub(code.read(change_at), b.load(slope)))
            code.write(weight, weight_at)
            code.write(change, change_at)
        whole.add_to_rows((weights, changes), (grad_rows, whole.rows), (of_value, of_key))
        whole.sum_rows(changes, key, whole.scale)
        queries.store(whole.columns, whole.rows, of_query)
    code.end()


def _write_transpose(module: ir.Module) -> None:
    code = VectorCode(module, _TRANSPOSE, [POINTER, INT, POINTER, INT])
    source, source_step, target, target_step = code.arguments
    rows = [code.read(code.at(source, (source_step, row))) for row in range(LANES)]
    for row, values in enumerate(code.transposed(rows)):
        code.write(values, code.at(target, (target_step, row)))
    code.end()


class AttentionCode(NamedTuple):
    """Both passes of attention, over some tiles of heads. Tensors are float32 and contiguous; arguments are their addresses.

    Both end with the same arguments: the segments, int64 [segments, 6] as in
    ``packed_rows.segment_table``; one table in the forward pass and two in the backward pass, for
    [keys + LANES, LANES] numbers, where keys is the length of the longest row; the numbers of segments, heads and key heads; the
    first tile of heads, and the one after the last; and the scale.

    Attributes:
        forward: takes query [t, heads, dim]; key and value [t, key heads, dim]; then what it writes to: the output
            [t, heads, dim], and peaks and shares [t, heads], which are each query's largest score, as a power of 2, and one over
            the sum of weights relative to that.
        backward: takes query, key and value; the output's gradient; slopes [t, heads], the sums of the products of that gradient
            and the output; peaks and shares; the gradients by query, to which it writes, and by key and value, to which it adds.
    """

    forward: Callable[..., None]
    backward: Callable[..., None]


@cache
def attention_code(heads: Heads) -> AttentionCode:
    """Make the code; a few tenths of a second."""
    module = ir.Module()
    _write_transpose(module)
    _write_forward(module, heads)
    _write_backward(module, heads)
    made = functions_of(module)
    return AttentionCode(made["forward"], made["backward"])
