"""Notes what vLLM's loaders copy where, when they run on tensors without data.

What always holds: whatever a loader writes is noted as a copy of a view of one tensor of the checkpoint, or as padding; loaders
that write anything else are refused.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode

Region = tuple[tuple[int, ...], tuple[int, ...], int]
"""Size, stride and offset of a view, in elements, as ``torch.as_strided`` takes them."""


class Copy(NamedTuple):
    """Copies region ``source`` of the checkpoint's tensor ``name`` to region ``target`` of a parameter."""

    name: str
    source: Region
    target: Region


class Padding(NamedTuple):
    """Fills region ``target`` of a parameter, for which the checkpoint has nothing, with ``value``."""

    value: float
    target: Region


Steps = dict[torch.nn.Module, dict[str, list[Copy | Padding]]]
"""The steps that make each parameter, by layer and name."""


class NotACopy(Exception):
    """A loader did something that no plan can repeat."""


class Recorder(TorchDispatchMode):
    """Notes every copy from one tensor without data to another, and every padding; refuses all other operations that write. A
    loader may write a clone of a view, whole, or a tensor of zeros.

    Args:
        sources: tensors of the checkpoint, by name.
        targets: parameters, by layer and name.
    """

    def __init__(
        self, sources: Mapping[str, torch.Tensor], targets: Mapping[torch.nn.Module, Mapping[str, torch.Tensor]]
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.sources = sources
        self.steps: Steps = {layer: {name: [] for name in tensors} for layer, tensors in targets.items()}
        self._names = {_storage(tensor): name for name, tensor in sources.items()}
        self._targets = {
            _storage(tensor): self.steps[layer][name] for layer, tensors in targets.items() for name, tensor in tensors.items()
        }
        # What is kept here lives on, so that no other tensor gets its storage.
        self._clones: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._zeros: dict[int, torch.Tensor] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        if not any(argument.alias_info is not None and argument.alias_info.is_write for argument in func._schema.arguments):
            made = func(*args, **(kwargs or {}))
            if func is torch.ops.aten.clone.default and _storage(args[0]) in self._names:
                self._clones[_storage(made)] = made, args[0]
            elif func is torch.ops.aten.zeros_like.default:
                self._zeros[_storage(made)] = made
            return made
        if func not in (torch.ops.aten.fill_.Scalar, torch.ops.aten.copy_.default):
            raise NotACopy(str(func))
        target, value = args[:2]
        steps = self._targets[_storage(target)]
        if func is torch.ops.aten.fill_.Scalar:
            steps.append(Padding(value, region(target)))
        elif value.shape != target.shape:
            raise NotACopy(f"{tuple(value.shape)} into {tuple(target.shape)}")
        elif _storage(value) in self._zeros:
            steps.append(Padding(0.0, region(target)))
        else:
            made, view = self._clones.get(_storage(value), (value, value))
            if region(made) != region(value):
                raise NotACopy("a part of a clone")
            steps.append(Copy(self._names[_storage(view)], region(view), region(target)))
        return target


def region(view: torch.Tensor) -> Region:
    """Return the region that a view is."""
    return tuple(view.size()), tuple(view.stride()), int(view.storage_offset())


def _storage(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)
