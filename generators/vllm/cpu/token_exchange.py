"""Lets the data-parallel ranks of an engine on a CPU exchange the tokens that their experts compute.

A rank has some of a layer's experts, or a part of each. So before such a layer each rank gets the tokens of all, and after it the
sum of what all computed of its own. vLLM has both operations for GPUs alone. What always holds: the results are those of
vLLM's own operations; ranks may have different numbers of tokens, and none.
"""

from collections.abc import Sequence
from typing import overload

import torch
from torch import distributed
from vllm.distributed.device_communicators.cpu_communicator import CpuCommunicator


def exchange_tokens() -> None:
    """Add both operations to vLLM's communication on a CPU. vLLM has no setting for it."""
    CpuCommunicator.all_gatherv = all_gatherv
    CpuCommunicator.reduce_scatterv = reduce_scatterv


@overload
def all_gatherv(group: CpuCommunicator, own: torch.Tensor, dim: int = 0, sizes: Sequence[int] | None = None) -> torch.Tensor: ...
@overload
def all_gatherv(
    group: CpuCommunicator, own: list[torch.Tensor], dim: int = 0, sizes: Sequence[int] | None = None
) -> list[torch.Tensor]: ...
def all_gatherv(
    group: CpuCommunicator, own: torch.Tensor | list[torch.Tensor], dim: int = 0, sizes: Sequence[int] | None = None
) -> torch.Tensor | list[torch.Tensor]:
    """Return the rows of all ranks, in the order of the ranks.

    Args:
        own: this rank's rows, [its rows, ...]; several such tensors are gathered one by one.
        dim: the dimension of the rows, 0.
        sizes: rows of each rank; None if all have as many.
    """
    if isinstance(own, list):
        return [all_gatherv(group, each, dim, sizes) for each in own]
    _check(dim)
    sizes = sizes or [len(own)] * group.world_size
    padded = own.new_zeros(max(sizes), *own.shape[1:])
    padded[: len(own)] = own
    gathered = [torch.empty_like(padded) for _ in sizes]
    distributed.all_gather(gathered, padded, group=group.device_group)
    return torch.cat([rows[:size] for rows, size in zip(gathered, sizes, strict=True)])


def reduce_scatterv(group: CpuCommunicator, rows: torch.Tensor, dim: int = 0, sizes: Sequence[int] | None = None) -> torch.Tensor:
    """Return this rank's part of the sum of what all ranks have for the rows of all.

    Args:
        rows: [rows of all ranks, ...], in the order of the ranks.
        dim: the dimension of the rows, 0.
        sizes: rows of each rank; None if all have as many.
    """
    _check(dim)
    sizes = sizes or [len(rows) // group.world_size] * group.world_size
    summed = rows.clone(memory_format=torch.contiguous_format)
    distributed.all_reduce(summed, group=group.device_group)
    own: torch.Tensor = summed.split(list(sizes))[group.rank_in_group]
    return own


def _check(dim: int) -> None:
    if dim != 0:
        raise ValueError(f"tokens are exchanged along dimension 0, not {dim}")
