"""Root-mean-square norm, gated SiLU and rotary embedding as loops, each in one pass over memory.

Arrays are contiguous, and hold float32 numbers or bfloat16 ones, whose bits numpy takes for uint16; all arithmetic is in float32.
Norm and gated SiLU round to bfloat16 between two steps where torch's operators do: engines do as well. The last two arguments of
each loop are the first row to compute, and the one after the last.
"""

from typing import Any

import numpy as np
from numba import types
from numba.extending import overload

from asyncrl.core.process.compiled import Array, compiled

ONE = np.float32(1.0)
LOG2_E, LN_2 = np.float32(1.4426950408889634), np.float32(0.6931471805599453)
LEAST, MOST = np.float32(-126.0), np.float32(127.0)
"""The smallest and the largest exponent of a float32 number."""
T2, T3, T4 = np.float32(0.24022650695910072), np.float32(0.05550410866482158), np.float32(0.009618129107628477)
T5, T6 = np.float32(0.0013333558146428443), np.float32(1.5403530393381608e-4)
"""``ln(2)**n / n!``: the Taylor series of ``2**x``, whose relative error is below 2e-7 for ``abs(x) <= 0.5``."""

NOT_A_NUMBER = np.uint16(0x7FC0)
"""What is not a number, as bfloat16."""


@compiled
def norm(values: Array, weight: Array, epsilon: float, normed: Array, scales: Array, begin: int, end: int) -> None:
    """Write ``normed`` [rows, n] and ``scales`` [rows] of ``values`` [rows, n]; ``weight`` is [n]."""
    size = len(weight)
    for row in range(begin, end):
        of_row, result, squares = values[row], normed[row], np.float32(0)
        for place in range(size):
            value = _wide(of_row[place])
            squares += value * value
        scale = ONE / np.sqrt(squares / np.float32(size) + np.float32(epsilon))
        scales[row] = scale
        for place in range(size):
            value = _wide(of_row[place]) * scale
            result[place] = _like(_wide(_like(value, weight)) * _wide(weight[place]), weight)


@compiled
def norm_gradient(
    grad: Array, values: Array, weight: Array, scales: Array, of_values: Array, of_weight: Array, begin: int, end: int
) -> None:
    """Write the gradient by the values [rows, n], and add the one by the weight to float32 ``of_weight`` [n]."""
    size = len(weight)
    for row in range(begin, end):
        its_grad, of_row, result, scale, products = grad[row], values[row], of_values[row], scales[row], np.float32(0)
        for place in range(size):
            slope, normed = _wide(its_grad[place]), _wide(of_row[place]) * scale
            products += slope * _wide(weight[place]) * normed
            of_weight[place] += slope * normed
        # The norm removes the component of a row's gradient along the normed row.
        along = -products / np.float32(size)
        for place in range(size):
            by_normed = _wide(its_grad[place]) * _wide(weight[place])
            result[place] = _like((by_normed + _wide(of_row[place]) * scale * along) * scale, weight)


@compiled
def gated_silu(both: Array, gated: Array, begin: int, end: int) -> None:
    """Write ``gated`` [rows, n] of gates and factors [rows, 2 n]."""
    size = gated.shape[1]
    for row in range(begin, end):
        gates, factors, result = both[row, :size], both[row, size:], gated[row]
        for place in range(size):
            gate = _wide(gates[place])
            activated = _wide(_like(gate * _sigmoid(gate), both))
            result[place] = _like(activated * _wide(factors[place]), both)


@compiled
def gated_silu_gradient(grad: Array, both: Array, of_both: Array, begin: int, end: int) -> None:
    """Write the gradient by gates and factors [rows, 2 n]; ``grad`` is [rows, n]."""
    size = grad.shape[1]
    for row in range(begin, end):
        gates, factors, its_grad = both[row, :size], both[row, size:], grad[row]
        of_gates, of_factors = of_both[row, :size], of_both[row, size:]
        for place in range(size):
            gate, slope = _wide(gates[place]), _wide(its_grad[place])
            sigmoid = _sigmoid(gate)
            activated = _wide(_like(gate * sigmoid, both))
            of_gates[place] = _like(slope * _wide(factors[place]) * sigmoid * (ONE + gate * (ONE - sigmoid)), both)
            of_factors[place] = _like(slope * activated, both)


@compiled
def rotate(values: Array, cosines: Array, sines: Array, rotated: Array, begin: int, end: int) -> None:
    """Write float32 ``rotated`` [t, heads, dim], rounded as ``values`` are; cosine and sine are float32 [t, dim / 2]."""
    half = cosines.shape[1]
    for token in range(begin, end):
        cosine, sine = cosines[token], sines[token]
        for head in range(values.shape[1]):
            first, second = values[token, head, :half], values[token, head, half:]
            of_first, of_second = rotated[token, head, :half], rotated[token, head, half:]
            for place in range(half):
                left, right = _wide(first[place]), _wide(second[place])
                of_first[place] = _wide(_like(left * cosine[place] - right * sine[place], values))
                of_second[place] = _wide(_like(right * cosine[place] + left * sine[place], values))


@compiled
def rotate_back(grad: Array, cosines: Array, sines: Array, of_values: Array, begin: int, end: int) -> None:
    """Write the gradient by the values of :func:`rotate`."""
    half = cosines.shape[1]
    for token in range(begin, end):
        cosine, sine = cosines[token], sines[token]
        for head in range(grad.shape[1]):
            first, second = grad[token, head, :half], grad[token, head, half:]
            of_first, of_second = of_values[token, head, :half], of_values[token, head, half:]
            for place in range(half):
                of_first[place] = _like(first[place] * cosine[place] + second[place] * sine[place], of_values)
                of_second[place] = _like(second[place] * cosine[place] - first[place] * sine[place], of_values)


@compiled
def _sigmoid(value: Any) -> Any:
    return ONE / (ONE + _power_of_two(value * -LOG2_E))


@compiled
def _power_of_two(exponent: Any) -> Any:
    """``2**exponent``; below the smallest and above the largest exponent of a number, these. What is not a number stays so."""
    exponent = LEAST if exponent < LEAST else exponent
    exponent = MOST if exponent > MOST else exponent
    whole = np.rint(exponent)
    part = exponent - whole
    power = ONE + part * (LN_2 + part * (T2 + part * (T3 + part * (T4 + part * (T5 + part * T6)))))
    # The power is not a number where the exponent is none; the whole part must only be some integer.
    shift = np.int32(whole if whole == whole else ONE)
    return power * np.int32((shift + np.int32(127)) << np.int32(23)).view(np.float32)


def _wide(number: Any) -> Any:
    """A stored number as float32."""
    raise NotImplementedError


def _like(value: Any, stored: Any) -> Any:
    """A float32 number as the numbers of the array ``stored``: rounded to the nearest, ties to even."""
    raise NotImplementedError


@overload(_wide, strict=False)
def _wide_of(number: Any) -> Any:
    if isinstance(number, types.Float):
        return lambda number: number
    return lambda number: np.uint32(np.uint32(number) << np.uint32(16)).view(np.float32)


@overload(_like, strict=False)
def _like_of(value: Any, stored: Any) -> Any:
    if isinstance(stored.dtype, types.Float):
        return lambda value, stored: value

    def rounded(value: Any, stored: Any) -> Any:
        bits = np.float32(value).view(np.uint32)
        bits = np.uint32(bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1)))
        return np.uint16(bits >> np.uint32(16)) if value == value else NOT_A_NUMBER

    return rounded
