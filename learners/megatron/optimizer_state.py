"""Creates the state of Megatron's distributed optimizer before the first optimizer step, and loads it exactly.

This is needed for torch's Adam. For TransformerEngine's, Megatron does both itself.
"""

from collections.abc import Iterator
from typing import Any

import torch
from megatron.core.optimizer import MegatronOptimizer
from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer


def fuse(optimizer: MegatronOptimizer) -> None:
    """Have torch's Adam update all parameters in one kernel. TransformerEngine's does so by itself."""
    for each in optimizer.chained_optimizers:
        if isinstance(each.optimizer, torch.optim.AdamW):
            for group in each.optimizer.param_groups:
                group["fused"], group["foreach"] = True, False


def ensure_state(optimizer: DistributedOptimizer) -> None:
    """Give torch's Adam the state that it would create in its first step. Megatron cannot describe an Adam without
    state."""
    inner = optimizer.optimizer
    if not isinstance(inner, torch.optim.AdamW):
        return
    for parameter in _parameters(inner):
        if not inner.state[parameter]:
            inner.state[parameter] = {
                "step": _step(0.0, parameter, inner),
                "exp_avg": torch.zeros_like(parameter),
                "exp_avg_sq": torch.zeros_like(parameter),
            }


def load_state(optimizer: DistributedOptimizer, loaded: dict[str, Any]) -> None:
    """Load moments, master weights and step counters of ``optimizer`` from a checkpoint. Its settings stay those of the
    recipe."""
    inner = optimizer.optimizer
    settings = [{key: value for key, value in group.items() if key not in ("params", "step")} for group in inner.param_groups]
    tensors = loaded.pop("param_state")
    # From 0.19 on, Megatron also tells groups apart by settings, such as the learning rate, which may be others now.
    by_kind = {_kind(group): setting for group, setting in zip(inner.param_groups, settings, strict=True)}
    for group in loaded["optimizer"]["param_groups"]:
        group.update(by_kind.get(_kind(group), {}))
    optimizer.load_state_dict(loaded)
    for group, setting in zip(inner.param_groups, settings, strict=True):
        group.update(setting)
    # Megatron has now given all parameters the same step counter object, which Adam would advance once for each of
    # them. Megatron would also look for the counter among the tensors, where it is not.
    steps = {parameter: inner.state[parameter].pop("step", None) for parameter in _parameters(inner)}
    with torch.no_grad():
        optimizer.load_parameter_state_from_fully_reshardable(tensors)
    for parameter, step in steps.items():
        if step is not None:
            inner.state[parameter]["step"] = _step(float(step), parameter, inner)


def _kind(group: dict[str, Any]) -> tuple[object, ...]:
    """What tells a group of parameters from the others, whatever the recipe."""
    return tuple(group.get(key) for key in ("wd_mult", "lr_mult", "is_expert_parallel", "is_decoupled_lr"))


def _step(count: float, parameter: torch.Tensor, optimizer: torch.optim.Optimizer) -> torch.Tensor:
    """A step counter of its own for a parameter. The fused Adam has it on the parameter's device, any other on the CPU."""
    fused = optimizer.param_groups[0].get("fused")
    return torch.tensor(count, dtype=torch.float32, device=parameter.device if fused else "cpu")


def _parameters(optimizer: torch.optim.Optimizer) -> Iterator[torch.Tensor]:
    return (parameter for group in optimizer.param_groups for parameter in group["params"])
