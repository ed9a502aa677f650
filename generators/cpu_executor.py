"""How vLLM runs its model on a CPU here: inside the engine's own process, on threads of its own.

vLLM's CPU platform gives the model a second process, and the two wait for each other by spinning, so that an engine of one thread
keeps two cores busy. With :class:`InProcessExecutor` the engine costs the core that does the work and nothing else.
"""

import os
from collections.abc import Sequence
from typing import Any

import torch
import torch._dynamo
from vllm import ir
from vllm.v1.executor.uniproc_executor import UniProcExecutor

CONFIG_KEY = "asyncrl_threads"
"""Where, in vLLM's ``additional_config``, the executor finds the threads it may use."""

_KERNELS = "asyncrl_cpu"


def thread_config(cores: Sequence[int] | None, engines: int) -> dict[str, Any]:
    """vLLM's ``additional_config`` for an engine on ``cores``, or, if None, with an equal share of the host's cores, unbound.

    Binding helps when every engine has cores to itself. When engines, learner and front ends share few, it keeps the bound
    threads from moving to where there is time. Of an unbound share, one core is left to the front end, if there are several.
    """
    threads = len(cores) if cores else max(1, len(os.sched_getaffinity(0)) // engines - 1)
    return {CONFIG_KEY: {"count": threads, "cores": list(cores or ())}}


def parse_cores(cores: str) -> list[int]:
    """Core numbers out of a list like ``0,2-4``.

    Raises:
        ValueError: it is no such list.
    """
    try:
        ranges = [[int(end) for end in part.split("-")] for part in cores.split(",")]
    except ValueError as error:
        raise ValueError(f"{cores!r} is no list of cores; write it like 0,2-4") from error
    return [core for ends in ranges for core in range(ends[0], ends[-1] + 1)]


class InProcessExecutor(UniProcExecutor):
    """vLLM's single-process executor with its number of threads set, and with its C++ kernels for RMSNorm in use.

    vLLM ships these kernels for the CPU but dispatches to them on GPUs only; the tensor program that it runs instead makes a
    fifth of a small model's step.
    """

    def _init_executor(self) -> None:
        threads = self.vllm_config.additional_config[CONFIG_KEY]
        if threads["cores"]:
            os.sched_setaffinity(0, threads["cores"])
        torch.set_num_threads(threads["count"])
        # vLLM compiles a function or two even if told to run eagerly: seconds with a C++ compiler for each shape it meets.
        torch._dynamo.config.disable = True
        super()._init_executor()
        _use_norm_kernels()


def _use_norm_kernels() -> None:
    if _KERNELS in ir.ops.rms_norm.impls:
        return
    ir.ops.rms_norm.register_impl(_KERNELS, supports_args=_fits_rms_norm)(_rms_norm)
    ir.ops.fused_add_rms_norm.register_impl(_KERNELS, supports_args=_fits_fused_add, inplace=True)(_fused_add_rms_norm)
    ir.ops.rms_norm.set_default([_KERNELS, "native"])
    ir.ops.fused_add_rms_norm.set_default([_KERNELS, "native"])


def _fits_rms_norm(x: torch.Tensor, weight: torch.Tensor | None, epsilon: float, variance_size: int | None = None) -> bool:
    return variance_size is None and weight is not None and weight.dtype == x.dtype


def _fits_fused_add(
    x: torch.Tensor, x_residual: torch.Tensor, weight: torch.Tensor | None, epsilon: float, variance_size: int | None = None
) -> bool:
    return _fits_rms_norm(x, weight, epsilon, variance_size) and x.is_contiguous() and x_residual.is_contiguous()


def _rms_norm(x: torch.Tensor, weight: torch.Tensor | None, epsilon: float, variance_size: int | None = None) -> torch.Tensor:
    x = x.contiguous()  # the kernel assumes it, and what it normalizes for each head is a slice of a larger tensor
    normalized = torch.empty_like(x)
    torch.ops._C.rms_norm(normalized, x, weight, epsilon)
    return normalized


def _fused_add_rms_norm(
    x: torch.Tensor, x_residual: torch.Tensor, weight: torch.Tensor | None, epsilon: float, variance_size: int | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    torch.ops._C.fused_add_rms_norm(x, x_residual, weight, epsilon)
    return x, x_residual
