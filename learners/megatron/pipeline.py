"""Tensors between pipeline stages in the interleaved schedule."""

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
    """Announces shapes in the order in which the tensors follow.

    Of two stages each comes before and after the other, and both ends take messages in the order in which they are posted.
    Megatron's own announcement posts everything for the previous stage first, on both ends: with two stages the shapes of an
    activation and of a gradient change places, and where they differ gloo aborts the process. It also waits until its messages
    have been taken, while the stage that is to take them may be waiting for this one to take a tensor.
    """

    def __init__(self, pp_group: dist.ProcessGroup, config: TransformerConfig) -> None:
        super().__init__(pp_group, config)
        self._announced: list[tuple[dist.Work, Tensor | None]] = []

    def finish(self) -> None:
        """Wait until every announcement has been taken."""
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
    """Arguments that tell the schedule of ``config`` how to communicate; none where Megatron's default is right."""
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
    communicator = InterleavedCommunicator(groups.pp, config)
    yield {"p2p_communicator": communicator, "pg_collection": groups}
    communicator.finish()


def _shape_of(tensor: Tensor) -> Tensor:
    return torch.tensor(tensor.shape, device=tensor.device)


def _no_shape() -> Tensor:
    return torch.empty(3, dtype=torch.int64, device=torch.cuda.current_device())
