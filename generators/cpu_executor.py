"""How vLLM runs its model on a CPU here: inside the engine's own process, on threads of its own.

vLLM's CPU platform gives the model a second process, and the two wait for each other by spinning, so that an engine of one thread
keeps two cores busy. With :class:`InProcessExecutor` the engine costs the core that does the work and nothing else.
"""

import os

import torch
import torch._dynamo
from vllm import ir
from vllm.v1.executor.uniproc_executor import UniProcExecutor

CONFIG_KEY = "asyncrl_threads"
"""Where, in vLLM's ``additional_config``, the executor finds the number of threads it may use."""

_KERNELS = "asyncrl_cpu"


def thread_config(engines: int) -> dict[str, int]:
    """vLLM's ``additional_config`` for one of ``engines`` that share the host's cores equally.

    Of a share of several cores, one is left to the front end. Threads are not bound to cores: where engines, learner and front
    ends share few cores, that would keep threads from moving to where there is time.
    """
    return {CONFIG_KEY: max(1, len(os.sched_getaffinity(0)) // engines - 1)}


class InProcessExecutor(UniProcExecutor):
    """vLLM's single-process executor with its number of threads set, and with its C++ kernels for RMSNorm in use.

    vLLM ships these kernels for the CPU but dispatches to them on GPUs only; the tensor program that it runs instead makes a
    fifth of a small model's step.
    """

    def _init_executor(self) -> None:
        torch.set_num_threads(self.vllm_config.additional_config[CONFIG_KEY])
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
