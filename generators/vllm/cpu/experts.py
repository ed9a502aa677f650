"""Lets a worker on a CPU compute a mixture of experts of which it has only some, whole ones (``enable_expert_parallel``).

vLLM's kernel for CPUs looks an expert up by its number in the whole model, and reads beyond the end of what such a worker has.

What always holds: a worker computes, for each token, the weighted sum over those of the token's experts that it has. vLLM adds up
what the workers computed.
"""

from typing import Any

import torch
from vllm.model_executor.layers.fused_moe.experts.cpu_moe import CPUUnquantizedExperts

_compute = CPUUnquantizedExperts.apply


def number_own_experts() -> None:
    """Have the kernel look experts up by their numbers among those that the worker has. vLLM has no setting for it."""
    CPUUnquantizedExperts.apply = _compute_own


def _compute_own(
    experts: CPUUnquantizedExperts, *, topk_weights: torch.Tensor, topk_ids: torch.Tensor, expert_map: torch.Tensor, **others: Any
) -> None:
    topk_weights, topk_ids = only_own_experts(topk_weights, topk_ids, expert_map)
    _compute(experts, topk_weights=topk_weights, topk_ids=topk_ids, expert_map=expert_map, **others)


def only_own_experts(weights: torch.Tensor, ids: torch.Tensor, expert_map: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return weights and numbers of the chosen experts for a worker that has only some of them.

    Args:
        weights: float [tokens, chosen], what each chosen expert counts.
        ids: int [tokens, chosen], their numbers in the whole model.
        expert_map: int [experts], the number of each expert among those of the worker; -1 if the worker lacks it.

    Returns:
        Both in the same shapes. An expert that the worker lacks counts 0, and has the number of one that it has.
    """
    own = expert_map[ids.long()]
    return weights.masked_fill(own < 0, 0.0), own.clamp(min=0).to(ids.dtype)
