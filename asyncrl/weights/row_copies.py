"""Copies rows of integers, and adds them up with weights in the same pass over memory.

This is nearly all the work of a publication on a CPU, and memory limits it: what reads the rows twice, once to copy and once to
add up, takes twice as long. LLVM, which comes with numba, makes machine code of the loop for this processor when it is first
needed, in a few hundredths of a second. What always holds: the sum is that of the very bytes that were copied.
"""

import ctypes
import threading
from collections.abc import Callable
from enum import StrEnum
from functools import cache
from itertools import pairwise
from typing import Any, NamedTuple

from asyncrl.core.machine_code import machine_code

_BLOCK_BYTES = 64
"""Bytes of a row that the loop takes at once: a cache line, and a whole register where registers are largest."""
_AHEAD_BYTES = 1 << 10
"""How far ahead of what is added up memory is asked for: the processor by itself stops at the end of each page."""
_STREAM_BYTES = 1 << 20
"""From this size on, what is copied goes past the caches: it would not stay there, and they would read memory to overwrite it."""
_BYTES_OF_A_THREAD = 1 << 20
"""With less to do than this, another thread is not worth its start."""


class Rows(NamedTuple):
    """Where rows of integers lie: the address of the first, and the bytes from one to the next."""

    address: int
    step: int

    def from_row(self, row: int) -> "Rows":
        """The rows from this one on."""
        return Rows(self.address + row * self.step, self.step)


_NOWHERE = Rows(0, 0)
"""The target of rows that are only added up."""


class Factors(NamedTuple):
    """The addresses of what rows and columns are multiplied with: int64 [R] and int64 [C]."""

    rows: int
    columns: int


def sum_of_rows(
    source: Rows, target: Rows | None, count: int, columns: int, width: int, factors: Factors, threads: int = 1
) -> int:
    """Return the sum of ``source[r, c] * rows[r] * columns[c]``, modulo 2**64, and copy ``source`` to ``target`` if there is one.

    Args:
        count: how many rows; at least one.
        columns: how many integers a row has; at least one.
        width: bytes of an integer: 1, 2, 4 or 8. They are signed.
        threads: how many threads share the rows, at most.
    """
    loop = _loop(width, _way(target, count * columns * width))
    parts = min(threads, count, count * columns * width // _BYTES_OF_A_THREAD)
    if parts <= 1:
        return loop(*source, *(target or _NOWHERE), count, columns, *factors) % 2**64
    sums = [0] * parts

    def add_up(part: int, begin: int, end: int) -> None:
        there = target.from_row(begin) if target else _NOWHERE
        sums[part] = loop(*source.from_row(begin), *there, end - begin, columns, factors.rows + 8 * begin, factors.columns)

    bounds = list(pairwise(count * part // parts for part in range(parts + 1)))
    others = [threading.Thread(target=add_up, args=(part, *bounds[part]), name="fingerprint") for part in range(1, parts)]
    for thread in others:
        thread.start()
    add_up(0, *bounds[0])
    for thread in others:
        thread.join()
    return sum(sums) % 2**64


class _Way(StrEnum):
    """What the loop does with a block after it has read it."""

    SUM = ""
    COPY = "store <{lanes} x i{bits}> %values, ptr %to.block, align {width}"
    STREAM = "store <{lanes} x i{bits}> %values, ptr %to.block, align 64, !nontemporal !0"


def _way(target: Rows | None, size: int) -> _Way:
    if target is None:
        return _Way.SUM
    aligned = target.address % _BLOCK_BYTES == target.step % _BLOCK_BYTES == 0
    return _Way.STREAM if aligned and size >= _STREAM_BYTES else _Way.COPY


_CODE = """
define i64 @rows(ptr %source, i64 %source.step, ptr %target, i64 %target.step,
                 i64 %count, i64 %columns, ptr %row.factors, ptr %column.factors) {{
entry:
  %whole = and i64 %columns, -{lanes}
  %has.blocks = icmp ne i64 %whole, 0
  %has.single = icmp ne i64 %whole, %columns
  br label %row

row:
  %r = phi i64 [0, %entry], [%r.next, %row.end]
  %total = phi <{lanes} x i64> [zeroinitializer, %entry], [%total.next, %row.end]
  %rest = phi i64 [0, %entry], [%rest.next, %row.end]
  %from.byte = mul i64 %r, %source.step
  %from = getelementptr i8, ptr %source, i64 %from.byte
  %to.byte = mul i64 %r, %target.step
  %to = getelementptr i8, ptr %target, i64 %to.byte
  br i1 %has.blocks, label %block, label %blocks.end

block:
  %c = phi i64 [0, %row], [%c.next, %block]
  %sum = phi <{lanes} x i64> [zeroinitializer, %row], [%sum.next, %block]
  %from.block = getelementptr i{bits}, ptr %from, i64 %c
  %to.block = getelementptr i{bits}, ptr %to, i64 %c
  %factors.block = getelementptr i64, ptr %column.factors, i64 %c
  %values = load <{lanes} x i{bits}>, ptr %from.block, align {width}
  {store}
  %ahead = getelementptr i8, ptr %from.block, i64 {ahead}
  call void @llvm.prefetch.p0(ptr %ahead, i32 0, i32 3, i32 1)
  %wide = {widen} <{lanes} x i{bits}> %values to <{lanes} x i64>
  %factors = load <{lanes} x i64>, ptr %factors.block, align 8
  %products = mul <{lanes} x i64> %wide, %factors
  %sum.next = add <{lanes} x i64> %sum, %products
  %c.next = add i64 %c, {lanes}
  %more = icmp ult i64 %c.next, %whole
  br i1 %more, label %block, label %blocks.end

blocks.end:
  %sum.row = phi <{lanes} x i64> [zeroinitializer, %row], [%sum.next, %block]
  br i1 %has.single, label %single, label %row.end

single:
  %s = phi i64 [%whole, %blocks.end], [%s.next, %single]
  %left = phi i64 [0, %blocks.end], [%left.next, %single]
  %from.single = getelementptr i{bits}, ptr %from, i64 %s
  %factor.single = getelementptr i64, ptr %column.factors, i64 %s
  %value = load i{bits}, ptr %from.single, align {width}
  {store_single}
  %value.wide = {widen} i{bits} %value to i64
  %column.factor = load i64, ptr %factor.single, align 8
  %product = mul i64 %value.wide, %column.factor
  %left.next = add i64 %left, %product
  %s.next = add i64 %s, 1
  %again = icmp ult i64 %s.next, %columns
  br i1 %again, label %single, label %row.end

row.end:
  %left.row = phi i64 [0, %blocks.end], [%left.next, %single]
  %factor.at = getelementptr i64, ptr %row.factors, i64 %r
  %factor = load i64, ptr %factor.at, align 8
  %factor.first = insertelement <{lanes} x i64> poison, i64 %factor, i32 0
  %factor.all = shufflevector <{lanes} x i64> %factor.first, <{lanes} x i64> poison, <{lanes} x i32> zeroinitializer
  %weighted = mul <{lanes} x i64> %sum.row, %factor.all
  %total.next = add <{lanes} x i64> %total, %weighted
  %left.weighted = mul i64 %left.row, %factor
  %rest.next = add i64 %rest, %left.weighted
  %r.next = add i64 %r, 1
  %go.on = icmp ult i64 %r.next, %count
  br i1 %go.on, label %row, label %done

done:
  fence seq_cst
  %of.blocks = call i64 @llvm.vector.reduce.add.v{lanes}i64(<{lanes} x i64> %total.next)
  %result = add i64 %of.blocks, %rest.next
  ret i64 %result
}}
declare void @llvm.prefetch.p0(ptr, i32, i32, i32)
declare i64 @llvm.vector.reduce.add.v{lanes}i64(<{lanes} x i64>)
!0 = !{{i32 1}}
"""
"""The loop, as LLVM's assembly. The fence lets other processes see what went past the caches."""


@cache
def _loop(width: int, way: _Way) -> Callable[..., int]:
    """Make machine code for integers of ``width`` bytes. Calls of it let other threads of Python run."""
    values: dict[str, Any] = {"lanes": _BLOCK_BYTES // width, "bits": 8 * width, "width": width, "ahead": _AHEAD_BYTES}
    single = "" if way is _Way.SUM else f"store i{8 * width} %value, ptr %to.single, align {width}"
    place = f"%to.single = getelementptr i{8 * width}, ptr %to, i64 %s"
    code = _CODE.format(
        store=way.value.format(**values),
        store_single=f"{place}\n  {single}",
        widen="sext" if width < 8 else "bitcast",
        **values,
    )
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    signature = number, (pointer, number, pointer, number, number, number, pointer, pointer)
    return machine_code(code, {"rows": signature}, optimized=False)["rows"]
