"""Machine code for root-mean-square norm, gated SiLU and rotary embedding on a CPU, each in one pass over memory.

Numbers are float32 or bfloat16, and computed in float32. Norm and gated SiLU round to bfloat16 between two steps where torch's
operators do: engines do as well.
"""

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

from llvmlite import ir

from learners.megatron.cpu.vector_code import FLOAT, INT, LANES, LOG2_E, POINTER, Value, VectorCode, functions_of

_BFLOAT16_POINTER = ir.IntType(16).as_pointer()


class ElementwiseCode(NamedTuple):
    """The functions for one data type, *T*. Tensors are contiguous; arguments are their addresses. The last two arguments of each
    are the first row to compute, and the one after the last.

    Attributes:
        norm: takes values T [rows, n], weight T [n]; what it writes to: the normed values T [rows, n] and scales float32 [rows];
            n, a multiple of ``LANES``; epsilon.
        norm_gradient: takes the gradient T [rows, n], values, weight and scales; the gradient by the values, to which it writes,
            and by the weight, float32 [n], to which it adds; n.
        gated_silu: takes gates and factors T [rows, 2 n]; the result T [rows, n], to which it writes; n, a multiple of ``LANES``.
        gated_silu_gradient: takes the gradient T [rows, n], gates and factors; the gradient by these, to which it writes; n.
        rotate: takes values T [t, heads, dim], cosine and sine float32 [t, dim / 2]; the result, float32 [t, heads, dim] but
            rounded to T, to which it writes; the number of heads; dim, a multiple of twice ``LANES``.
        rotate_back: takes a gradient float32 [t, heads, dim], cosine and sine; the result T [t, heads, dim]; the same numbers.
    """

    norm: Callable[..., None]
    norm_gradient: Callable[..., None]
    gated_silu: Callable[..., None]
    gated_silu_gradient: Callable[..., None]
    rotate: Callable[..., None]
    rotate_back: Callable[..., None]


@cache
def elementwise_code(*, bfloat16: bool) -> ElementwiseCode:
    """Make the code for bfloat16 or float32; a tenth of a second."""
    module = ir.Module()
    numbers = _BFLOAT16_POINTER if bfloat16 else POINTER
    _write_norm(module, numbers)
    _write_norm_gradient(module, numbers)
    _write_gated_silu(module, numbers)
    _write_gated_silu_gradient(module, numbers)
    _write_rotation(module, "rotate", numbers, POINTER, forward=True)
    _write_rotation(module, "rotate_back", POINTER, numbers, forward=False)
    return ElementwiseCode(**functions_of(module))


def _stored(code: VectorCode, values: Value, numbers: ir.Type) -> Value:
    """``values`` as they are once they have been stored as ``numbers``."""
    return values if numbers == POINTER else code.rounded(values)


def _write_norm(module: ir.Module, numbers: ir.Type) -> None:
    code = VectorCode(module, "norm", [numbers, numbers, numbers, POINTER, INT, FLOAT, INT, INT])
    values, weight, normed, scales, size, epsilon, begin, end = code.arguments
    b, squares = code.b, code.variable()
    count = b.sitofp(size, FLOAT)
    with code.loop(begin, end) as row:
        b.store(code.vector(0.0), squares)
        with code.loop(0, size, LANES) as start:
            value = code.read(code.at(values, (row, size), start))
            code.add_product(value, value, squares)
        mean = b.fdiv(code.lane_sum(b.load(squares)), code.everywhere(count))
        scale = b.fdiv(code.vector(1.0), code.square_root(b.fadd(mean, code.everywhere(epsilon))))
        b.store(b.extract_element(scale, code.integer(0)), code.at(scales, row))
        with code.loop(0, size, LANES) as start:
            value = _stored(code, b.fmul(code.read(code.at(values, (row, size), start)), scale), numbers)
            code.write(b.fmul(value, code.read(code.at(weight, start))), code.at(normed, (row, size), start))
    code.end()


def _write_norm_gradient(module: ir.Module, numbers: ir.Type) -> None:
    code = VectorCode(module, "norm_gradient", [numbers, numbers, numbers, POINTER, numbers, POINTER, INT, INT, INT])
    grad, values, weight, scales, of_values, of_weight, size, begin, end = code.arguments
    b, products = code.b, code.variable()
    count = b.sitofp(size, FLOAT)
    with code.loop(begin, end) as row:
        scale = code.everywhere(b.load(code.at(scales, row)))
        b.store(code.vector(0.0), products)

        def read(start: Value, row: Value = row, scale: Value = scale) -> tuple[Value, Value, Value]:
            """The gradient, the normed values, and the gradient by these."""
            its_grad = code.read(code.at(grad, (row, size), start))
            normed = b.fmul(code.read(code.at(values, (row, size), start)), scale)
            return its_grad, normed, b.fmul(its_grad, code.read(code.at(weight, start)))

        with code.loop(0, size, LANES) as start:
            its_grad, normed, of_normed = read(start)
            code.add_product(of_normed, normed, products)
            place = code.at(of_weight, start)
            code.write(code.multiply_add(its_grad, normed, code.read(place)), place)
        # The norm removes the component of a row's gradient along the normed row.
        along = b.fdiv(code.lane_sum(b.load(products)), code.everywhere(b.fneg(count)))
        with code.loop(0, size, LANES) as start:
            _, normed, of_normed = read(start)
            code.write(b.fmul(code.multiply_add(normed, along, of_normed), scale), code.at(of_values, (row, size), start))
    code.end()


def _sigmoid(code: VectorCode, values: Value) -> Value:
    exponential = code.exp2(code.b.fmul(values, code.vector(-LOG2_E)))
    return code.b.fdiv(code.vector(1.0), code.b.fadd(code.vector(1.0), exponential))


def _write_gated_silu(module: ir.Module, numbers: ir.Type) -> None:
    code = VectorCode(module, "gated_silu", [numbers, numbers, INT, INT, INT])
    both, gated, size, begin, end = code.arguments
    b = code.b
    with code.loop(begin, end) as row, code.loop(0, size, LANES) as start:
        gate, factor = code.read(code.at(both, (row, size, 2), start)), code.read(code.at(both, (row, size, 2), start, size))
        activated = _stored(code, b.fmul(gate, _sigmoid(code, gate)), numbers)
        code.write(b.fmul(activated, factor), code.at(gated, (row, size), start))
    code.end()


def _write_gated_silu_gradient(module: ir.Module, numbers: ir.Type) -> None:
    code = VectorCode(module, "gated_silu_gradient", [numbers, numbers, numbers, INT, INT, INT])
    grad, both, of_both, size, begin, end = code.arguments
    b = code.b
    with code.loop(begin, end) as row, code.loop(0, size, LANES) as start:
        its_grad = code.read(code.at(grad, (row, size), start))
        gate, factor = code.read(code.at(both, (row, size, 2), start)), code.read(code.at(both, (row, size, 2), start, size))
        sigmoid = _sigmoid(code, gate)
        activated = _stored(code, b.fmul(gate, sigmoid), numbers)
        # d silu / d gate = sigmoid * (1 + gate * (1 - sigmoid))
        slope = b.fmul(sigmoid, code.multiply_add(gate, b.fsub(code.vector(1.0), sigmoid), code.vector(1.0)))
        code.write(b.fmul(b.fmul(its_grad, factor), slope), code.at(of_both, (row, size, 2), start))
        code.write(b.fmul(its_grad, activated), code.at(of_both, (row, size, 2), start, size))
    code.end()


def _write_rotation(module: ir.Module, name: str, given: ir.Type, made: ir.Type, *, forward: bool) -> None:
    code = VectorCode(module, name, [given, POINTER, POINTER, made, INT, INT, INT, INT])
    values, cosines, sines, rotated, heads, dim, begin, end = code.arguments
    b, half = code.b, code.b.sdiv(dim, code.integer(2))
    with code.loop(begin, end) as token, code.loop(0, half, LANES) as start:
        cosine, sine = (code.read(code.at(table, (token, half), start)) for table in (cosines, sines))
        sine = sine if forward else b.fneg(sine)
        with code.loop(0, heads) as head:
            place = b.mul(b.add(b.mul(token, heads), head), dim)
            first, second = code.read(code.at(values, place, start)), code.read(code.at(values, place, start, half))
            turned = (
                code.multiply_add(first, cosine, b.fneg(b.fmul(second, sine))),
                code.multiply_add(second, cosine, b.fmul(first, sine)),
            )
            for number, value in enumerate(turned):
                code.write(_stored(code, value, given), code.at(rotated, place, start, (half, number)))
    code.end()
