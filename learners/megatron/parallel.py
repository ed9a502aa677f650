"""The learner's ranks as a process group: they meet, agree and leave. The same calls use gloo on CPU and NCCL on
GPU."""

import datetime
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from megatron.core import parallel_state, tensor_parallel

from asyncrl.core.errors import AsyncRLError, DeadlineExceeded, RankLost
from asyncrl.core.process.processor import processor_name
from asyncrl.core.recipe.schema import DeadlinesConfig
from asyncrl.learners.megatron.cpu.gloo_devices import shared_devices
from asyncrl.learners.megatron.cpu.onednn_products import multiply_with_onednn
from asyncrl.learners.megatron.rendezvous import meet
from asyncrl.learners.rank import RankSpec
from asyncrl.learners.step_report import Hardware

_SEED_STRIDE = 100
"""Distance between the seeds of neighbouring pipeline stages, as is Megatron's own convention."""


class ReplicasDiffer(AsyncRLError):
    """Data-parallel replicas hold different parameters, so averaging their gradients would make no sense."""


def device() -> torch.device:
    """The device that this rank computes on."""
    return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")


def hardware() -> Hardware:
    """What this rank computes on, once it is initialised."""
    here = device()
    name = torch.cuda.get_device_name(here) if here.type == "cuda" else processor_name()
    return Hardware(name, torch.get_num_threads(), str(torch.__version__))


def gathers_in_host_memory() -> bool:
    """Whether a checkpoint's optimizer state is gathered in host memory, by gloo. On a GPU the gathered state would take as
    much memory again as the state itself; on a CPU the ranks' own groups are gloo's already."""
    return torch.cuda.is_available()


def initialise(spec: RankSpec, deadlines: DeadlinesConfig, seed: int) -> None:
    """Meet the other ranks, form Megatron's groups and seed this rank. ``deadlines.step`` bounds every later
    collective.

    Raises:
        DeadlineExceeded: if not all ranks have come up within ``deadlines.start`` seconds.
    """
    layout = spec.layout
    torch.set_num_threads(spec.threads)
    on_gpu = torch.cuda.is_available()
    if on_gpu:
        torch.cuda.set_device(spec.rank % torch.cuda.device_count())
    else:
        multiply_with_onednn()
    with named_wait(spec, "coming up", deadlines.start):
        store = meet(spec, deadlines.start)
        with shared_devices():
            dist.init_process_group(
                "nccl" if on_gpu else "gloo",
                store=store,
                rank=spec.rank,
                world_size=layout.ranks,
                timeout=datetime.timedelta(seconds=deadlines.step),
            )
            parallel_state.initialize_model_parallel(
                tensor_model_parallel_size=layout.tensor,
                pipeline_model_parallel_size=layout.pipeline,
                context_parallel_size=layout.context,
                expert_model_parallel_size=layout.expert,
                expert_tensor_parallel_size=layout.expert_tensor,
                virtual_pipeline_model_parallel_size=layout.virtual_pipeline if layout.virtual_pipeline > 1 else None,
                distributed_timeout_minutes=deadlines.step / 60,
                create_gloo_process_groups=gathers_in_host_memory(),
            )
    # Megatron's own seeding covers its random streams but not torch's default generator. CPU initialisation draws from
    # that generator, and its seed differs from process to process.
    torch.manual_seed(seed + _SEED_STRIDE * spec.pipeline_rank)
    tensor_parallel.model_parallel_cuda_manual_seed(seed)


def close() -> None:
    """Leave the process group. Safe to call even if :func:`initialise` failed midway."""
    if parallel_state.model_parallel_is_initialized():
        parallel_state.destroy_model_parallel()
    if dist.is_initialized():
        dist.destroy_process_group()


@contextmanager
def named_wait(spec: RankSpec, activity: str, seconds: float) -> Iterator[None]:
    """Turn the errors that torch raises when another rank is late or gone into errors that say who waited for whom.

    Args:
        spec: the place of this rank.
        activity: what this rank is doing, for the error message.
        seconds: the time limit, for the error message.

    Raises:
        DeadlineExceeded: if a collective timed out.
        RankLost: if another rank closed its connection.
    """
    try:
        yield
    except RuntimeError as error:
        text = str(error).lower()
        if "connection closed by peer" in text or "connection reset by peer" in text:
            raise RankLost(
                f"learner rank {spec.rank} lost another rank while {activity}; look for the first error among the other ranks"
            ) from error
        if "timed out" not in text and "wait timeout" not in text:  # the texts of collectives, and of a file store
            raise
        raise DeadlineExceeded(
            f"learner rank {spec.rank}",
            f"the other learner ranks ({spec.layout.ranks - 1}) while {activity}",
            seconds,
            "look for the first error among the other ranks; if there is none, raise deadlines.start or deadlines.step",
        ) from error


def check_replicas_equal(model: torch.nn.Module) -> None:
    """Compare the bits of parameters between ranks that hold the same ones: data- and context-parallel ranks, and
    replicas of experts.

    Raises:
        ReplicasDiffer: naming the first parameter that differs.
    """
    everywhere: dict[str, torch.nn.Parameter] = {}
    of_experts: dict[str, torch.nn.Parameter] = {}
    for name, parameter in model.named_parameters():
        (everywhere if getattr(parameter, "allreduce", True) else of_experts)[name] = parameter
    _check_equal(everywhere, parallel_state.get_data_parallel_group(with_context_parallel=True))
    _check_equal(of_experts, parallel_state.get_expert_data_parallel_group())


def _check_equal(parameters: dict[str, torch.nn.Parameter], group: dist.ProcessGroup) -> None:
    if group.size() == 1 or not parameters:
        return
    names = list(parameters)
    sums = torch.stack([_bit_sum(parameter.detach()) for parameter in parameters.values()])
    lowest, highest = sums.clone(), sums.clone()
    dist.all_reduce(lowest, dist.ReduceOp.MIN, group)
    dist.all_reduce(highest, dist.ReduceOp.MAX, group)
    differing = (lowest != highest).nonzero().flatten().tolist()
    if differing:
        raise ReplicasDiffer(
            f"{len(differing)} parameters, the first {names[differing[0]]}, differ at the start between ranks that must hold "
            "the same; "
            "start all ranks from the same model folder and seed"
        )


def _bit_sum(tensor: torch.Tensor) -> torch.Tensor:
    bits = tensor.contiguous().view(torch.int16 if tensor.element_size() == 2 else torch.int32).flatten().long()
    # Weighted by place, so that the same values in a different order give a different sum.
    return (bits * torch.arange(1, len(bits) + 1, device=bits.device)).sum()
