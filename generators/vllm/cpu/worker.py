"""One vLLM worker on a CPU: the whole model in the engine's own process, or a tensor-parallel part of it in a process of its own.

By default, vLLM runs even a model that is not divided in a second process, and the two processes wait for each other by
spinning, so that an engine with one thread keeps two cores busy. With :data:`IN_PROCESS`, such an engine only uses the core that
does the work. What always holds: the number of threads is set before a worker computes anything, and does not change afterwards.

Where the learner leaves a core free, workers have a lower priority than the other processes of a run, so that learner, front
ends and tools run first. An engine that is held up a little finds more requests in its next step, and a step costs much the
same for few as for many. A learner with a rank on every core would hold the engine up for long, and then wait for it beside
an idle core.
"""

import glob
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from vllm import ir
from vllm.platforms.cpu import CpuPlatform
from vllm.v1.worker.cpu_worker import CPUWorker

from asyncrl.core.process.control_groups import usable_cores
from asyncrl.generators.vllm.cpu.products import use_kernels_for_any_number_of_tokens
from asyncrl.generators.vllm.cpu.returned_experts import ToldExperts
from asyncrl.generators.vllm.cpu.rotation import rotate_heads_apart
from asyncrl.generators.vllm.cpu.token_exchange import exchange_tokens

if TYPE_CHECKING:
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.kv_cache_interface import KVCacheConfig

IN_PROCESS = "vllm.v1.executor.uniproc_executor.UniProcExecutor"
"""The executor with the one worker in the engine's process. vLLM replaces its short name by that of the other executor."""
IN_PROCESSES = "asyncrl.generators.vllm.cpu.engine_queues.NamelessQueuesExecutor"
"""The executor with a process for each worker, which leaves nothing in memory if they are killed."""

_THREADS_KEY, _YIELDS_KEY = "asyncrl_threads", "asyncrl_yields"
"""Keys in vLLM's ``additional_config`` under which a worker finds its number of threads, and whether its priority is lower."""
_LOWER_PRIORITY = 4
"""What is added to the niceness of the process. Workers of Ray have 15, and 19 is the most there is."""
_KERNELS = "asyncrl_cpu"
_ADAPTERS = "asyncrl.generators.vllm.cpu.adapters.CpuAdapters"


def worker_config(engines: int, workers: int, *, yields: bool) -> dict[str, int | bool]:
    """Return vLLM's ``additional_config`` for one of ``engines`` engines that share this process's cores equally.

    If a share is more than one core, one core is left to the front end, and the ``workers`` of the engine share the others.
    Threads are not bound to cores: where engines, learner and front ends share few cores, binding would keep threads from moving
    to a free core.

    Args:
        yields: whether workers have a lower priority than the other processes of a run.
    """
    share = usable_cores() // engines - 1
    return {_THREADS_KEY: max(1, share // workers), _YIELDS_KEY: yields}


class ThreadedCpuWorker(CPUWorker):  # type: ignore[misc]
    """vLLM's worker on a CPU, with a set number of threads, with vLLM's C++ kernels for RMSNorm and for small products
    (``generators/vllm/cpu/products.py``), and with our own products for adapters (``generators/vllm/cpu/adapters.py``). It may
    have only some of the experts (:mod:`asyncrl.generators.vllm.cpu.experts`), exchange tokens with other data-parallel ranks
    (:mod:`asyncrl.generators.vllm.cpu.token_exchange`), and say which experts it sent tokens to
    (:mod:`asyncrl.generators.vllm.cpu.returned_experts`).

    vLLM ships its kernels for RMSNorm for the CPU but only uses them on GPUs. The PyTorch operations that it runs on a CPU
    instead take a fifth of a small model's step.
    """

    _told: ToldExperts | None = None

    def init_device(self) -> None:
        """Prepare the process for the model."""
        config = self.vllm_config.additional_config
        if config[_YIELDS_KEY]:
            os.nice(_LOWER_PRIORITY)  # of this thread, and of those that are started from it, which are all that compute
        torch.set_num_threads(config[_THREADS_KEY])
        # vLLM compiles some functions even in eager mode, which takes the C++ compiler seconds for each new shape.
        torch.compiler.set_stance("force_eager")
        if self.parallel_config.world_size > 1:
            from asyncrl.generators.vllm.cpu.engine_queues import remove_names  # takes a moment, and one worker has no queues

            remove_names()
        if self.parallel_config.data_parallel_size > 1:
            exchange_tokens()
        super().init_device()
        _remove_names()

    def initialize_from_config(self, kv_cache_config: "KVCacheConfig") -> None:
        """Make the cache, and begin to note experts if the engine is to say them."""
        super().initialize_from_config(kv_cache_config)
        self._told = ToldExperts.of(self.vllm_config, self.model_runner, kv_cache_config)

    def execute_model(self, scheduler_output: "SchedulerOutput") -> Any:
        """Compute one step up to the logits."""
        if self._told is not None:
            self._told.begin(scheduler_output)
        output = super().execute_model(scheduler_output)
        if self._told is not None:
            self._told.computed(scheduler_output)
        return output

    def sample_tokens(self, grammar_output: Any) -> Any:
        """Sample one token of each request of the step."""
        output = super().sample_tokens(grammar_output)
        return output if self._told is None else self._told.added_to(output)

    def load_model(self, *arguments: Any, **options: Any) -> None:
        """Load the model, which makes vLLM's own choice of kernels, but for those that we choose before and after."""
        CpuPlatform.get_punica_wrapper = classmethod(lambda _: _ADAPTERS)
        use_kernels_for_any_number_of_tokens()
        rotate_heads_apart()
        super().load_model(*arguments, **options)
        _use_norm_kernels()
        if self.parallel_config.enable_expert_parallel and self.parallel_config.world_size_across_dp > 1:
            from asyncrl.generators.vllm.cpu.experts import number_own_experts  # takes a moment, and most models have no experts

            number_own_experts()


def _remove_names() -> None:
    """Remove the names of the memory through which the workers of this engine exchange tensors. All of them have mapped it.

    vLLM removes them when a worker ends by itself. One that is killed would leave them, with the memory.
    """
    names = f"{glob.escape(os.environ['VLLM_DIST_IDENT'])}-*-cpushm_*"
    for path in Path("/dev/shm").glob(names):
        path.unlink(missing_ok=True)


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
    x = x.contiguous()  # the kernel assumes it, but with a norm for each head, x is a slice of a larger tensor
    normalized = torch.empty_like(x)
    torch.ops._C.rms_norm(normalized, x, weight, epsilon)
    return normalized


def _fused_add_rms_norm(
    x: torch.Tensor, x_residual: torch.Tensor, weight: torch.Tensor | None, epsilon: float, variance_size: int | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    torch.ops._C.fused_add_rms_norm(x, x_residual, weight, epsilon)
    return x, x_residual
