"""Makes machine code for the processor at hand by LLVM, through llvmlite, which numba brings along.

What always holds: while code that was made here runs, other threads of Python do, too.
"""

import ctypes
from collections.abc import Callable, Sequence
from typing import Any


def machine_code(
    assembly: str, signatures: dict[str, tuple[Any, Sequence[Any]]], *, optimized: bool
) -> dict[str, Callable[..., Any]]:
    """Return the functions of LLVM's ``assembly``, by name.

    Args:
        signatures: for each function, the type of its result (None for none) and those of its arguments, as in :mod:`ctypes`.
        optimized: whether LLVM is to improve the code first, which it needs if variables lie in memory.
    """
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=llvm.get_host_cpu_features().flatten(), opt=3
    )
    module = llvm.parse_assembly(assembly)
    if optimized:
        builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=2))
        builder.getModulePassManager().run(module, builder)
    engine = llvm.create_mcjit_compiler(module, machine)
    engine.finalize_object()
    made: dict[str, Any] = {}
    for name, (result, arguments) in signatures.items():
        made[name] = ctypes.CFUNCTYPE(result, *arguments)(engine.get_function_address(name))
        made[name].engine = engine  # the code lives as long as this
    return made
