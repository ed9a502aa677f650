"""Communication of tensors between pipeline stages in the interleaved schedule."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.pipeline_parallel.p2p_communication import P2PCommunicator, _p2p_ops
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor


class InterleavedCommunicator(P2PCommunicator):
    """Sends the shapes of tensors ahead of them, in the order in which the tensors follow.

    With two stages, each stage is both the previous and the next stage of the other, and both sides receive messages in
    the order in which they are posted. Megatron's own exchange of shapes first posts everything for the previous stage,
    on both sides. With two stages, the shapes of an activation and of a gradient are therefore swapped, and if they
    differ, gloo aborts the process. Megatron also waits until its messages have been received, while the stage that
    should receive them may be waiting for this one to receive a tensor.
    """

    def __init__(self, pp_group: dist.ProcessGroup, config: TransformerConfig) -> None:
        super().__init__(pp_group, config)
        self._announced: list[tuple[dist.Work, Tensor | None]] = []

    def finish(self) -> None:
        """Wait until every shape that was sent has been received."""
        for request, _ in self._announced:
            request.wait()
        self._announced.clear()

    def _communicate_shapes(
        self, tensor_send_next: Tensor | None, tensor_send_prev: Tensor | None, recv_prev: bool, recv_next: bool
    ) -> tuple[list[int], list[int]]:
        from_prev, from_next = (_no_shape() if wanted else None for wanted in (recv_prev, recv_next))
        to_prev, to_next = (None if tensor is None else _shape_of(tensor) for tensor in (tensor_send_prev, tensor_send_next))
        requests = _p2p_ops(
            tensor_send_prev=to_prev,
            tensor_recv_prev=from_prev,
            tensor_send_next=to_next,
            tensor_recv_next=from_next,
            group=self.pp_group,
            prev_pipeline_rank=self.prev_rank,
            next_pipeline_rank=self.next_rank,
        )
        for name, request in requests.items():
            if name.startswith("recv"):
                request.wait()
            else:
                self._announced.append((request, to_prev if name == "send_prev" else to_next))
        of_prev, of_next = ([] if shape is None else shape.tolist() for shape in (from_prev, from_next))
        return of_prev, of_next


@contextmanager
def communication(config: TransformerConfig) -> Iterator[dict[str, Any]]:
    """Context manager that yields arguments for Megatron's schedule: how to communicate in the interleaved schedule.
    Yields none where Megatron's default is right."""
    if config.virtual_pipeline_model_parallel_size is None:
        yield {}
        return
    groups = ProcessGroupCollection()
    groups.tp = parallel_state.get_tensor_model_parallel_group()
    groups.cp = parallel_state.get_context_parallel_group()
    groups.pp = parallel_state.get_pipeline_model_parallel_group()
    groups.embd = parallel_state.get_embedding_group(check_initialized=False)
    groups.pos_embd = parallel_state.get_position_embedding_group(check_initialized=False)
    groups.dp_cp = parallel_state.get_data_parallel_group(with_context_parallel=True)
    groups.tp_dp_cp = parallel_state.get_tensor_and_data_parallel_group(with_context_parallel=True)
    communicator = InterleavedCommunicator(groups.pp, config)
    yield {"p2p_communicator": communicator, "pg_collection": groups}
    communicator.finish()


def _shape_of(tensor: Tensor) -> Tensor:
    return torch.tensor(tensor.shape, device=tensor.device)


def _no_shape() -> Tensor:
    return torch.empty(3, dtype=torch.int64, device=torch.cuda.current_device())
