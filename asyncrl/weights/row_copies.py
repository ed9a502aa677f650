"""Copies rows of integers, and adds them up with weights.

This is nearly all the work of a publication on a CPU, and memory limits it: what reads the rows twice, once to copy and once to
add up, takes twice as long. What always holds: each row is added up as it is copied, or right after each of its parts, while
the caches have that.
"""

import threading
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from asyncrl.core.process.compiled import Array, compiled

_LINE_BYTES = 64
"""A cache line."""
_COLUMNS_AT_ONCE = 512
"""Integers that are copied past the caches, and added up then: few enough for the nearest cache."""
_STREAM_BYTES = 1 << 20
"""From this size on, what is copied goes past the caches: it would not stay there, and they would read memory to overwrite it."""
_BYTES_OF_A_THREAD = 1 << 20
"""With less to do than this, another thread is not worth its start."""


class Rows(NamedTuple):
    """Rows of signed integers: all memory from the first to the end of the last, and how many integers there are from one row to
    the next."""

    integers: Array
    step: int

    def from_row(self, row: int) -> "Rows":
        """The rows from this one on."""
        return Rows(self.integers[row * self.step :], self.step)


def sum_of_rows(source: Rows, target: Rows | None, rows: Array, columns: Array, threads: int = 1) -> int:
    """Return the sum of ``source[r, c] * rows[r] * columns[c]``, modulo 2**64, and copy ``source`` to ``target`` if there is one.

    Args:
        rows, columns: int64 [R] and int64 [C]; at least one of each.
        threads: how many threads share the rows, at most.
    """
    size = len(rows) * len(columns) * source.integers.itemsize
    past_caches = target is not None and size >= _STREAM_BYTES and _is_aligned(target)
    parts = min(threads, len(rows), size // _BYTES_OF_A_THREAD)
    if parts <= 1:
        return _sum(source, target, rows, columns, past_caches=past_caches) % 2**64
    sums = [0] * parts

    def add_up(part: int, begin: int, end: int) -> None:
        there = target.from_row(begin) if target else None
        sums[part] = _sum(source.from_row(begin), there, rows[begin:end], columns, past_caches=past_caches)

    bounds = list(pairwise(len(rows) * part // parts for part in range(parts + 1)))
    others = [threading.Thread(target=add_up, args=(part, *bounds[part]), name="fingerprint") for part in range(1, parts)]
    for thread in others:
        thread.start()
    add_up(0, *bounds[0])
    for thread in others:
        thread.join()
    return sum(sums) % 2**64


def _sum(source: Rows, target: Rows | None, rows: Array, columns: Array, *, past_caches: bool) -> int:
    if target is None:
        return int(_add(*source, rows, columns))
    return int((_copy_past_caches if past_caches else _copy)(*source, *target, rows, columns))


def _is_aligned(rows: Rows) -> bool:
    """Whether each row begins with a cache line."""
    return rows.integers.ctypes.data % _LINE_BYTES == rows.step * rows.integers.itemsize % _LINE_BYTES == 0


@compiled
def _add(source: Array, source_step: int, rows: Array, columns: Array) -> Any:
    total = np.int64(0)
    for row in range(len(rows)):
        given, of_row = source[row * source_step : row * source_step + len(columns)], np.int64(0)
        for column in range(len(columns)):
            of_row += given[column] * columns[column]
        total += of_row * rows[row]
    return total


@compiled
def _copy(source: Array, source_step: int, target: Array, target_step: int, rows: Array, columns: Array) -> Any:
    total, size = np.int64(0), len(columns)
    for row in range(len(rows)):
        given, made = source[row * source_step : row * source_step + size], target[row * target_step : row * target_step + size]
        of_row = np.int64(0)
        for column in range(size):
            value = given[column]
            made[column] = value
            of_row += value * columns[column]
        total += of_row * rows[row]
    return total


@compiled
def _copy_past_caches(source: Array, source_step: int, target: Array, target_step: int, rows: Array, columns: Array) -> Any:
    total, size = np.int64(0), len(columns)
    in_line = _LINE_BYTES // source.itemsize
    for row in range(len(rows)):
        given, made = source[row * source_step : row * source_step + size], target[row * target_step : row * target_step + size]
        of_row = np.int64(0)
        for first in range(0, size, _COLUMNS_AT_ONCE):
            last = min(size, first + _COLUMNS_AT_ONCE)
            lines = (last - first) // in_line
            for line in range(lines):
                _copy_line(made, given, first + line * in_line)
            for column in range(first + lines * in_line, last):
                made[column] = given[column]
            part, factors = given[first:last], columns[first:last]
            for place in range(len(part)):
                of_row += part[place] * factors[place]
        total += of_row * rows[row]
    _let_others_see()
    return total


@intrinsic
def _copy_line(typing_context: Any, target: Any, source: Any, place: Any) -> Any:
    """Copy a cache line, from ``place`` on, without leaving it in the caches."""

    def write(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        line = ir.VectorType(ir.IntType(64), _LINE_BYTES // 8).as_pointer()
        into, given = (
            builder.bitcast(builder.gep(context.make_array(kind)(context, builder, array).data, [arguments[2]]), line)
            for kind, array in zip(signature.args[:2], arguments[:2], strict=True)
        )
        stored = builder.store(builder.load(given, align=source.dtype.bitwidth // 8), into, align=_LINE_BYTES)
        stored.set_metadata("nontemporal", builder.module.add_metadata([cgutils.int32_t(1)]))
        return context.get_dummy_value()

    return types.void(target, source, types.int64), write


@intrinsic
def _let_others_see(typing_context: Any) -> Any:
    """Have other processes see what went past the caches."""

    def write(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.void(), write
