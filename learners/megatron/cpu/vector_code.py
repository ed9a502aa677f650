"""Writes functions on vectors of float32 numbers, of which LLVM makes machine code for the processor at hand.

Each of torch's operators passes over memory once. A function of our own does in one pass what would be ten of them. It takes a
few tenths of a second to make, once in a process.
"""

import ctypes
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import llvmlite.binding as llvm
from llvmlite import ir

LANES = 16
"""Numbers in a vector: as many as fill a register where registers are largest."""
LOG2_E, LN_2 = 1.4426950408889634, 0.6931471805599453
_EXP2 = (1.0, LN_2, 0.24022650695910072, 0.05550410866482158, 0.009618129107628477, 0.0013333558146428443, 1.5403530393381608e-4)
"""``ln(2)**n / n!``: the Taylor series of ``2**x``, whose relative error is below 2e-7 for ``abs(x) <= 0.5``."""
_EXPONENTS = -126.0, 127.0
"""The smallest and the largest exponent of a float32 number."""

FLOAT, INT, NARROW = ir.FloatType(), ir.IntType(64), ir.IntType(32)
POINTER = FLOAT.as_pointer()
VECTOR, INTS = ir.VectorType(FLOAT, LANES), ir.VectorType(NARROW, LANES)

Value = Any
"""A value of LLVM's."""


class VectorCode:
    """Writes one function, which returns nothing.

    Attributes:
        b: LLVM's builder, at the place where code is written.
        arguments: the function's arguments. No two pointers among them lead to the same memory.

    Args:
        module: where the function is written to.
        name: its name.
        kinds: types of its arguments.
    """

    def __init__(self, module: ir.Module, name: str, kinds: Sequence[ir.Type]) -> None:
        self._module = module
        self._function = ir.Function(module, ir.FunctionType(ir.VoidType(), kinds), name)
        for argument in self._function.args:
            if isinstance(argument.type, ir.PointerType):
                argument.add_attribute("noalias")
        self._function.attributes.add("noinline")  # to keep the code small, and soon made
        self.arguments: tuple[Value, ...] = self._function.args
        self._entry = ir.IRBuilder(self._function.append_basic_block())
        self._body = self._function.append_basic_block()
        self.b = ir.IRBuilder(self._body)

    def end(self) -> None:
        """End the function."""
        self.b.ret_void()
        self._entry.branch(self._body)

    @contextmanager
    def loop(self, begin: Value | int, end: Value | int, step: int = 1) -> Iterator[Value]:
        """Repeat the code within for each value of the counter that this yields."""
        before, head, body, after = self.b.block, *(self._function.append_basic_block() for _ in range(3))
        self.b.branch(head)
        self.b.position_at_end(head)
        counter = self.b.phi(INT)
        counter.add_incoming(self.integer(begin), before)
        self.b.cbranch(self.b.icmp_signed("<", counter, self.integer(end)), body, after)
        self.b.position_at_end(body)
        yield counter
        counter.add_incoming(self.b.add(counter, self.integer(step)), self.b.block)
        self.b.branch(head)
        self.b.position_at_end(after)

    def variable(self, kind: ir.Type = VECTOR) -> Value:
        """A place for a value, which LLVM keeps in a register where it can."""
        return self._entry.alloca(kind)

    def variables(self, count: int) -> list[Value]:
        """Places for vectors."""
        return [self.variable() for _ in range(count)]

    def table(self, rows: int, columns: int, number: ir.Type = FLOAT) -> Value:
        """A pointer to ``rows * columns`` numbers on the stack."""
        place = self._entry.alloca(ir.ArrayType(number, rows * columns))
        place.align = 64
        return self._entry.bitcast(place, number.as_pointer())

    def integer(self, value: Value | int) -> Value:
        """``value`` as a value of LLVM's."""
        return ir.Constant(INT, value) if isinstance(value, int) else value

    def lower(self, left: Value | int, right: Value | int) -> Value:
        """The lower one of two integers."""
        left, right = self.integer(left), self.integer(right)
        return self.b.select(self.b.icmp_signed("<", left, right), left, right)

    def vector(self, value: float) -> Value:
        """A vector with the same constant in all lanes."""
        return ir.Constant(VECTOR, [value] * LANES)

    def everywhere(self, scalar: Value) -> Value:
        """A vector of ``scalar`` in all lanes."""
        kind = ir.VectorType(scalar.type, LANES)
        first = self.b.insert_element(ir.Constant(kind, ir.Undefined), scalar, ir.Constant(NARROW, 0))
        return self.b.shuffle_vector(first, ir.Constant(kind, ir.Undefined), ir.Constant(INTS, [0] * LANES))

    def at(self, pointer: Value, *terms: Value | int | tuple[Value | int, ...]) -> Value:
        """``pointer`` moved on by the sum of ``terms``; a tuple among them stands for its product."""
        offset = self.integer(0)
        for term in terms:
            first, *others = term if isinstance(term, tuple) else (term,)
            product = self.integer(first)
            for factor in others:
                product = self.b.mul(product, self.integer(factor))
            offset = self.b.add(offset, product)
        return self.b.gep(pointer, [offset])

    def read(self, pointer: Value) -> Value:
        """The vector at ``pointer``."""
        return self.b.load(self.b.bitcast(pointer, VECTOR.as_pointer()), align=4)

    def write(self, values: Value, pointer: Value) -> None:
        """Write a vector to ``pointer``."""
        self.b.store(values, self.b.bitcast(pointer, VECTOR.as_pointer()), align=4)

    def multiply_add(self, left: Value, right: Value, added: Value) -> Value:
        """``left * right + added``, rounded once where the processor can."""
        return self._call("llvm.fmuladd", left, right, added)

    def add_product(self, left: Value, right: Value, place: Value) -> None:
        """Add ``left * right`` to the variable at ``place``."""
        self.b.store(self.multiply_add(left, right, self.b.load(place)), place)

    def larger(self, left: Value, right: Value) -> Value:
        """The larger of both in each lane; ``right`` where one is not a number."""
        return self.b.select(self.b.fcmp_ordered(">", left, right), left, right)

    def exp2(self, values: Value) -> Value:
        """``2**values``; below the smallest and above the largest exponent of a number, these. What is not a number stays so."""
        least, most = map(self.vector, _EXPONENTS)
        values = self.b.select(self.b.fcmp_ordered("<", values, least), least, values)
        values = self.b.select(self.b.fcmp_ordered(">", values, most), most, values)
        whole = self._call("llvm.rint", values)
        part = self.b.fsub(values, whole)
        power = self.vector(_EXP2[-1])
        for coefficient in reversed(_EXP2[:-1]):
            power = self.multiply_add(power, part, self.vector(coefficient))
        # The power is not a number where the value is none; its exponent must only be some integer.
        exponent = self.b.select(self.b.fcmp_ordered("ord", whole, whole), whole, self.vector(0.0))
        exponent = self.b.shl(self.b.fptosi(exponent, INTS), self._ints(23))
        return self.b.bitcast(self.b.add(self.b.bitcast(power, INTS), exponent), VECTOR)

    def transposed(self, rows: Sequence[Value]) -> list[Value]:
        """The columns of a square of ``LANES`` rows."""
        rows, step = list(rows), 1
        while step < LANES:
            upper = [lane if not lane & step else LANES + lane - step for lane in range(LANES)]
            lower = [lane + step if not lane & step else LANES + lane for lane in range(LANES)]
            for number in range(LANES):
                if not number & step:
                    pair = rows[number], rows[number + step]
                    masks = (ir.Constant(INTS, order) for order in (upper, lower))
                    rows[number], rows[number + step] = (self.b.shuffle_vector(*pair, mask) for mask in masks)
            step *= 2
        return rows

    def call(self, name: str, *arguments: Value) -> None:
        """Call another function of the module."""
        self.b.call(self._module.globals[name], arguments)

    def _ints(self, value: int) -> Value:
        return ir.Constant(INTS, [value] * LANES)

    def _call(self, intrinsic: str, *values: Value) -> Value:
        name = f"{intrinsic}.v{LANES}f32"
        if name not in self._module.globals:
            ir.Function(self._module, ir.FunctionType(VECTOR, [VECTOR] * len(values)), name)
        return self.b.call(self._module.globals[name], values)


@cache
def has_wide_registers() -> bool:
    """Whether the processor has AVX-512: 32 registers of ``LANES`` numbers.

    Without it, code that keeps as many vectors at once would spend its time on moving them to memory and back.
    """
    return bool(llvm.get_host_cpu_features().get("avx512f"))


def functions_of(module: ir.Module) -> dict[str, Callable[..., None]]:
    """Make machine code of all functions of ``module``, by name. While they run, other threads of Python do, too."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=llvm.get_host_cpu_features().flatten(), opt=3
    )
    parsed = llvm.parse_assembly(str(module))
    builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=2))
    builder.getModulePassManager().run(parsed, builder)
    engine = llvm.create_mcjit_compiler(parsed, machine)
    engine.finalize_object()
    kinds: dict[str, Any] = {str(INT): ctypes.c_int64, str(FLOAT): ctypes.c_float}
    made: dict[str, Any] = {}
    for each in module.functions:
        if not each.is_declaration:
            arguments = [kinds.get(str(kind), ctypes.c_void_p) for kind in each.function_type.args]
            made[each.name] = ctypes.CFUNCTYPE(None, *arguments)(engine.get_function_address(each.name))
            made[each.name].engine = engine  # the code lives as long as this
    return made
