"""What megatron-core needs before it is imported: everywhere, that unusable packages are hidden from it; on a host without a GPU,
what lets it run on CPU tensors with gloo.

Everything that is replaced here only raises errors on a host without CUDA, so nothing that works is changed. Call
:func:`install` before the first import of ``megatron.core``, and only in the process of a learner rank, because it
changes ``torch.cuda`` for the whole process.
"""

import contextlib
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.overrides import TorchFunctionMode

from asyncrl.learners.megatron.optional_packages import hide_unusable
from asyncrl.learners.megatron.versions import silence
from asyncrl.learners.supported_model import check_megatron

_CPU = torch.device("cpu")


def install() -> None:
    """Prepare this process. It may be called several times, which only filters warnings more often.

    Raises:
        RecipeError: if this version of megatron-core has not been tested.
    """
    check_megatron()
    hide_unusable()
    silence()
    if torch.cuda.is_available():
        return
    _silence_expected_warnings()
    _replace_cuda_runtime()
    _keep_from_compiling()
    _replace_random_state()
    _replace_copy_of_counts()
    _replace_uneven_collectives()


def cuda_means_cpu() -> contextlib.AbstractContextManager[Any]:
    """Context manager within which Megatron's literal ``"cuda"`` devices mean the CPU; does nothing on a host with a
    GPU."""
    return contextlib.nullcontext() if torch.cuda.is_available() else _CudaMeansCpu()


def _silence_expected_warnings() -> None:
    """Silence warnings that Megatron and torch give in every CPU run and that nobody can act on."""
    warnings.filterwarnings("ignore", category=UserWarning, module=r"megatron\.core\.")
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"torch\.distributed\.c10d_logger")
    warnings.filterwarnings("ignore", category=UserWarning, message=r"The \.grad attribute of a Tensor that is not a leaf")


class _DoneStream:
    """Stands in for ``torch.cuda.Stream`` and ``Event``. CPU operators have finished when they return, so there is
    nothing to wait for."""

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def _done(self, *_: Any) -> None: ...

    wait_stream = wait_event = record = wait = synchronize = _done

    def record_event(self, *_: Any) -> "_DoneStream":
        return self

    def query(self) -> bool:
        return True


def _keep_from_compiling() -> None:
    """Have Megatron leave its functions as they are: to compile them takes longer than a short run.

    The package itself imports modules that compile theirs, before it can be told not to. Even to ask for that imports torch's
    compiler, which takes two seconds of processor time.
    """
    lazily = torch.compile
    torch.compile = _as_it_is  # type: ignore[assignment]
    try:
        from megatron.core import jit
    finally:
        torch.compile = lazily
    jit.disable_jit_fuser()


def _as_it_is(function: Callable[..., Any]) -> Callable[..., Any]:
    return function


def _replace_cuda_runtime() -> None:
    done = _DoneStream()
    cuda: Any = torch.cuda
    cuda.current_device = lambda: _CPU
    cuda.synchronize = lambda device=None: None
    cuda.current_stream = cuda.default_stream = lambda device=None: done
    cuda.stream = lambda stream=None: contextlib.nullcontext()
    cuda.Stream = cuda.Event = _DoneStream


def _replace_random_state() -> None:
    """Keep Megatron's named random streams in the CPU generator instead of the GPU's."""
    from megatron.core.tensor_parallel import random as megatron_random

    class CpuStates(megatron_random.CudaRNGStatesTracker):
        def add(self, name: str, seed: int) -> None:
            if seed in self.seeds_ or name in self.states_:
                raise ValueError(f"random stream {name!r} or seed {seed} exists already")
            self._is_initialized = True
            self.seeds_.add(seed)
            self.states_[name] = torch.Generator().manual_seed(seed).get_state()

        @contextlib.contextmanager
        def fork(self, name: str = megatron_random._MODEL_PARALLEL_RNG_TRACKER_NAME) -> Iterator[None]:
            outer = torch.get_rng_state()
            torch.set_rng_state(self.states_[name])
            try:
                yield
            finally:
                self.states_[name] = torch.get_rng_state()
                torch.set_rng_state(outer)

    megatron_random.CudaRNGStatesTracker = CpuStates
    megatron_random._get_cuda_rng_state = lambda *_, **__: torch.get_rng_state()
    megatron_random._set_cuda_rng_state = lambda state, *_, **__: torch.set_rng_state(state)


def _replace_copy_of_counts() -> None:
    """Convert the counts of tokens that ranks exchange to arrays.

    Megatron does so as it copies them from the GPU, but leaves CPU tensors as they are, and ``all_to_all_single``
    refuses tensors there.
    """
    from megatron.core.transformer.moe import token_dispatcher

    def on_cpu(counts: Any, as_numpy: bool = False, **_: Any) -> Any:
        return counts.detach().numpy() if as_numpy and isinstance(counts, torch.Tensor) else counts

    token_dispatcher.maybe_move_tensor_to_cpu = on_cpu


def _replace_uneven_collectives() -> None:
    """Let ranks gather and reduce-scatter parts of different sizes along the first dimension, which gloo refuses.

    Ranks that divide an expert do this with the expert's tokens.
    """
    from megatron.core.tensor_parallel import mappings

    gather: Callable[..., Tensor] = mappings._gather_along_first_dim
    reduce_scatter: Callable[..., Tensor] = mappings._reduce_scatter_along_first_dim

    def any_gather(mine: Tensor, group: dist.ProcessGroup, sizes: list[int] | None = None, *rest: Any) -> Tensor:
        if sizes is None or group.size() == 1:
            return gather(mine, group, sizes, *rest)
        longest = mine.new_zeros(max(sizes), *mine.shape[1:])
        longest[: len(mine)] = mine
        parts = [torch.empty_like(longest) for _ in sizes]
        dist.all_gather(parts, longest, group=group)
        return torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)])

    def any_reduce_scatter(values: Tensor, group: dist.ProcessGroup, sizes: list[int] | None = None, *rest: Any) -> Tensor:
        if sizes is None or group.size() == 1:
            return reduce_scatter(values, group, sizes, *rest)
        total = values.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=group)
        parts: tuple[Tensor, ...] = total.split(sizes)
        return parts[group.rank()].clone()

    mappings._gather_along_first_dim, mappings._reduce_scatter_along_first_dim = any_gather, any_reduce_scatter


def _is_cuda(device: object) -> bool:
    return (isinstance(device, str) and device.startswith("cuda")) or (isinstance(device, torch.device) and device.type == "cuda")


class _CudaMeansCpu(TorchFunctionMode):
    """Rewrites the three ways in which Megatron names a GPU: ``device="cuda"``, ``Tensor.cuda()`` and a tensor's type
    name. Requests for pinned memory are dropped."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is torch.Tensor.cuda:
            return args[0]
        if func is torch.Tensor.type and len(args) == 1 and not kwargs:
            return func(*args).replace("torch.", "torch.cuda.")
        if _is_cuda(kwargs.get("device")):
            kwargs = {**kwargs, "device": _CPU}
        if kwargs.get("pin_memory"):
            kwargs = {**kwargs, "pin_memory": False}
        return func(*args, **kwargs)
