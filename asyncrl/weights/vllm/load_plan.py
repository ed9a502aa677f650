"""A plan of what vLLM's loaders do with a checkpoint, so that new weights can be prepared while the engine goes on sampling.

vLLM's own way to replace weights takes the model apart, and the engine must be paused for all of it. A plan is made once, before
the first publication: the model's loaders run on tensors without data, and each copy that they make is noted. With the plan, the
new parameters of each layer are filled from slices of the publication (:mod:`asyncrl.weights.vllm.slice_reader`) beside those in
use. On a CPU they are packed for the kernels, and the pause is only for exchanging them; on a GPU, whose graphs know where the
parameters are, it is only for copying the new ones over the old ones.

What always holds: a plan exists only if the noted copies fill each parameter of the model completely, from rectangles of the
checkpoint's tensors, none of them twice, and padding. Otherwise no plan is made, and vLLM's own way is taken, with whole tensors:
for loaders that compute, for matrices that something other than their layer holds, and for quantized layers with layouts of their
own.
"""

import copy
import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import combinations
from typing import Any, NamedTuple

import torch

from asyncrl.core.rectangle import Rectangle
from asyncrl.weights.vllm.derived_weights import kernels_keep_tensors
from asyncrl.weights.vllm.engine_shards import Target
from asyncrl.weights.vllm.loader_copies import Copy, Padding, Recorder, Region

logger = logging.getLogger(__name__)


class PreparedLayer(NamedTuple):
    """New parameters of a layer, and attributes that belong to them, such as packed weights."""

    layer: torch.nn.Module
    parameters: dict[str, torch.nn.Parameter | None]
    attributes: dict[str, Any]
    held: dict[str, torch.nn.Parameter | None]

    @torch.no_grad()
    def exchange(self) -> None:
        """Give the layer its new parameters. What kernels hold too stays where it is, and gets new values."""
        self.layer._parameters.update(self.parameters)
        self.layer.__dict__.update(self.attributes)
        for name, values in self.held.items():
            used = self.layer._parameters[name]
            assert used is not None
            assert values is not None
            used.copy_(values)


class LoadPlan:
    """How the parameters of a model are made from the tensors of its checkpoint; see :meth:`of`.

    Attributes:
        targets: which parts of the checkpoint's tensors become which parts of the parameters.
        templates: parameters without data, by layer and name in it.
    """

    def __init__(
        self,
        targets: Sequence[Target],
        paddings: Mapping[str, Sequence[Padding]],
        templates: Mapping[torch.nn.Module, Mapping[str, torch.Tensor]],
        tied: Mapping[torch.nn.Module, torch.nn.Module],
        names: Mapping[torch.nn.Module, str],
        held: Mapping[torch.nn.Module, set[str]],
    ) -> None:
        self.targets, self._held = targets, held
        self.templates, self._paddings, self._tied, self._names = templates, paddings, tied, names

    @classmethod
    def of(
        cls,
        model: torch.nn.Module,
        shapes: Mapping[str, tuple[int, ...]],
        tied: list[torch.nn.Module],
        *,
        in_place: bool = False,
    ) -> "LoadPlan | None":
        """Make the plan of a model without touching any weight; return None if there can be none for this model.

        Args:
            model: a model that vLLM has loaded.
            shapes: the shape of each tensor of the checkpoint.
            tied: layers whose parameters all belong to a layer before them.
            in_place: whether new parameters are copied over those in use, instead of taking their place.
        """
        try:
            plan = cls._recorded(model, shapes, tied, in_place)
            if in_place:
                plan._check_layouts(plan.templates)
            return plan
        except _NoPlan as reason:
            logger.info("no load plan, so weights are loaded while the engine is paused: %s", reason)
            return None

    @classmethod
    def _recorded(
        cls, model: torch.nn.Module, shapes: Mapping[str, tuple[int, ...]], tied: list[torch.nn.Module], in_place: bool
    ) -> "LoadPlan":
        layers = [layer for layer in model.modules() if layer._parameters and layer not in tied]
        owners = {parameter: layer for layer in layers for parameter in layer._parameters.values() if parameter is not None}
        tied_to = {layer: owners[next(layer.parameters(recurse=False))] for layer in tied}
        if not all(_packs_by_itself(layer, in_place) for layer in [*layers, *tied]):
            raise _NoPlan("a layer does not pack its weights by itself")
        if kernels_keep_tensors(model):
            raise _NoPlan("an attention kernel holds tensors, which it may have made of weights")
        held = {} if in_place else _held_elsewhere(model, layers)
        if any(_names(layer) != _names(owner) for layer, owner in tied_to.items()):
            raise _NoPlan("a tied layer has other parameters than the layer before it")
        templates = {layer: _templates(layer) for layer in layers}
        in_use = {layer: dict(layer._parameters) for layer in model.modules()}
        sources = {name: torch.empty(shape, device="meta") for name, shape in shapes.items()}
        recorder = Recorder(sources, templates)
        try:
            for layer, tensors in templates.items():
                layer._parameters.update(tensors)  # type: ignore[arg-type]
            with recorder, torch.no_grad():
                model.load_weights(recorder.sources.items())  # type: ignore[operator]
        except Exception as error:
            raise _NoPlan(f"{type(error).__name__}: {error}") from error
        finally:
            for layer, parameters in in_use.items():
                layer._parameters.clear()
                layer._parameters.update(parameters)
        steps = recorder.steps
        complete = all(
            _fill_exactly_once(steps[layer][name], tensor)
            for layer, tensors in templates.items()
            for name, tensor in tensors.items()
        )
        if not complete:
            raise _NoPlan("its loaders do not fill every parameter exactly once")
        names = {layer: f"{name}." if name else "" for name, layer in model.named_modules()}
        made = {names[layer] + name: of_parameter for layer, each in steps.items() for name, of_parameter in each.items()}
        like = {names[layer] + name: tensor for layer, tensors in templates.items() for name, tensor in tensors.items()}
        paddings = {name: [step for step in of_parameter if isinstance(step, Padding)] for name, of_parameter in made.items()}
        targets = [
            _target(step, shapes[step.name], name, like[name])
            for name, of_parameter in made.items()
            for step in of_parameter
            if isinstance(step, Copy)
        ]
        _check_taken_once(targets)
        plan = cls(targets, paddings, templates, tied_to, names, held)
        plan._check_layouts(held)
        return plan

    @torch.no_grad()
    def prepare(self, fill: Callable[[Mapping[str, torch.Tensor]], None]) -> list[PreparedLayer]:
        """Make all parameters from a new checkpoint, beside the parameters in use.

        Args:
            fill: fills parameters, by their names, as :attr:`targets` says.
        """
        prepared = []
        for layer, templates in self.templates.items():
            tensors = empty_like(templates)
            self.fill_layer(layer, tensors, fill)
            made: dict[str, torch.nn.Parameter | None] = dict.fromkeys(layer._parameters)
            made |= {name: _as_parameter(tensor, templates[name]) for name, tensor in tensors.items()}
            # Layers are packed one by one: unpacked parameters that a layer's kernels do not need are freed before the next one.
            of_owner = [tied for tied, owner in self._tied.items() if owner is layer]
            prepared += [_packed(each, made, self._held.get(each, set())) for each in [layer, *of_owner]]
            del tensors, made
        return prepared

    def fill_layer(
        self, layer: torch.nn.Module, tensors: Mapping[str, torch.Tensor], fill: Callable[[Mapping[str, torch.Tensor]], None]
    ) -> None:
        """Fill the parameters of one layer, by their names in it, as :meth:`prepare` does."""
        named = {self._names[layer] + name: tensor for name, tensor in tensors.items()}
        for name, tensor in named.items():
            for padding in self._paddings[name]:
                torch.as_strided(tensor, *padding.target).fill_(padding.value)
        fill(named)

    def _check_layouts(self, copied: Mapping[torch.nn.Module, Iterable[str]]) -> None:
        """Refuse a model whose parameters in use have another layout than the loaders write, of those that are to be copied over,
        by layer and name."""
        for layer, names in copied.items():
            for name in names:
                used, like = layer._parameters[name], self.templates[layer][name]
                assert used is not None
                if (used.size(), used.stride(), used.dtype) != (like.size(), like.stride(), like.dtype):
                    raise _NoPlan(f"{self._names[layer]}{name} is not in the layout in which it was loaded")


class _NoPlan(Exception):
    """There can be no plan for a model; says why."""


def empty_like(templates: Mapping[str, torch.Tensor], device: torch.device | None = None) -> dict[str, torch.Tensor]:
    """Allocate tensors of the templates' layouts."""
    return {
        name: torch.empty_strided(like.size(), like.stride(), dtype=like.dtype, device=device) for name, like in templates.items()
    }


def _names(layer: torch.nn.Module) -> list[str]:
    return [name for name, parameter in layer._parameters.items() if parameter is not None]


def _held_elsewhere(model: torch.nn.Module, layers: Iterable[torch.nn.Module]) -> dict[torch.nn.Module, set[str]]:
    """Return, for each layer, which of its parameters something else holds too, and would keep if the layer had others: an
    attention kernel the sinks, and one of experts their biases. A matrix, which may be packed, must be the layer's alone."""
    there = {
        parameter.data_ptr(): (layer, name)
        for layer in layers
        for name, parameter in layer._parameters.items()
        if parameter is not None and parameter.numel()
    }
    held: defaultdict[torch.nn.Module, set[str]] = defaultdict(set)
    for module in model.modules():
        helpers = (each for each in vars(module).values() if hasattr(each, "__dict__"))  # such as routers and kernels
        for tensor in (each for owner in (module, *helpers) for each in vars(owner).values()):
            if isinstance(tensor, torch.Tensor) and tensor.numel() and tensor.data_ptr() in there:
                layer, name = there[tensor.data_ptr()]
                if tensor.dim() > 1:
                    raise _NoPlan(f"something else than its layer holds {name}")
                held[layer].add(name)
    for experts in filter(None, map(_experts, layers)):
        for bias in (experts.w1_bias, experts.w2_bias):
            if bias is not None:
                if bias.data_ptr() not in there:
                    raise _NoPlan("the kernel of experts has made biases of its own")
                layer, name = there[bias.data_ptr()]
                held[layer].add(name)
    return held


def _packs_by_itself(layer: torch.nn.Module, in_place: bool) -> bool:
    """Return whether what vLLM does to a layer's parameters after loading is known, and concerns that layer alone."""
    from vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method import UnquantizedFusedMoEMethod
    from vllm.model_executor.layers.linear import UnquantizedLinearMethod
    from vllm.model_executor.layers.quantization.base_config import QuantizeMethodBase
    from vllm.model_executor.layers.vocab_parallel_embedding import UnquantizedEmbeddingMethod

    method: Any = getattr(layer, "quant_method", None)
    if _experts(layer) is not None or (in_place and type(method) is UnquantizedFusedMoEMethod):
        # The kernel gets weights with each call, but keeps biases; on a GPU, it may have made others of them.
        return not (in_place and method.moe.has_bias)
    if isinstance(method, QuantizeMethodBase):
        return type(method) in (UnquantizedLinearMethod, UnquantizedEmbeddingMethod)
    return not hasattr(layer, "process_weights_after_loading")


def _experts(layer: torch.nn.Module) -> Any:
    """Return what packs a layer's experts for vLLM's CPU kernel; None if the layer has none, or another kernel."""
    method: Any = getattr(layer, "quant_method", None)
    if getattr(method, "moe_kernel", None) is None:
        return None
    from vllm.model_executor.layers.fused_moe.experts.cpu_moe import CPUUnquantizedExperts
    from vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method import UnquantizedFusedMoEMethod

    experts = method.moe_kernel.fused_experts
    known = type(method) is UnquantizedFusedMoEMethod and isinstance(experts, CPUUnquantizedExperts)
    return experts if known else None


def _templates(layer: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return the layer's parameters as its loaders expect them, without data. The layer itself may hold only packed ones."""
    from vllm.model_executor.model_loader.reload.layerwise import get_layerwise_info
    from vllm.model_executor.model_loader.reload.meta import to_meta_tensor
    from vllm.model_executor.model_loader.reload.sanitize import restore_layer_refs

    loadable, _ = get_layerwise_info(layer).restore_metadata
    return {
        name: restore_layer_refs(to_meta_tensor(loadable.get(name, parameter)), layer)
        for name, parameter in layer._parameters.items()
        if parameter is not None
    }


def _as_parameter(tensor: torch.Tensor, template: torch.Tensor) -> torch.nn.Parameter:
    """Give ``tensor`` the class and the attributes of ``template``, and return it."""
    tensor.__class__ = template.__class__
    tensor.__dict__ = template.__dict__.copy()
    return tensor  # type: ignore[return-value]


def _packed(layer: torch.nn.Module, parameters: dict[str, torch.nn.Parameter | None], held: set[str]) -> PreparedLayer:
    """Do to new parameters what vLLM does to those of a layer that it has just loaded. The layer itself is not changed."""
    from vllm.model_executor.layers.quantization.base_config import QuantizeMethodBase

    shadow = copy.copy(layer)
    shadow.__dict__["_parameters"] = dict(parameters)
    before = dict(shadow.__dict__)
    method: Any = getattr(layer, "quant_method", None)
    if (experts := _experts(layer)) is not None:
        experts.process_weights_after_loading(shadow)  # the method itself packs them only when it makes the kernel
    elif isinstance(method, QuantizeMethodBase):
        method.process_weights_after_loading(shadow)
    attributes = {name: value for name, value in shadow.__dict__.items() if name not in before or before[name] is not value}
    made = {name: parameter for name, parameter in shadow._parameters.items() if name not in held}
    return PreparedLayer(layer, made, attributes, {name: shadow._parameters[name] for name in held})


def _fill_exactly_once(steps: list[Copy | Padding], tensor: torch.Tensor) -> bool:
    """Return whether the steps fill each element of ``tensor`` exactly once."""
    filled = torch.zeros(tensor.untyped_storage().nbytes() // tensor.element_size(), dtype=torch.bool)
    for step in steps:
        torch.as_strided(filled, *step.target).fill_(True)
    elements = sum(torch.Size(step.target[0]).numel() for step in steps)
    return elements == tensor.numel() and bool(torch.as_strided(filled, tensor.size(), tensor.stride()).all())


def _target(step: Copy, shape: tuple[int, ...], parameter: str, template: torch.Tensor) -> Target:
    """Return what is copied as rectangles of both sides."""
    size, stride, offset = step.source
    if transposed := len(stride) == 2 and stride[0] < stride[1]:
        size, stride = size[::-1], stride[::-1]
    start, extent = _rectangle((size, stride, offset), shape, torch.empty(shape, device="meta").stride())
    at, filled = _rectangle(step.target, tuple(template.shape), template.stride())
    target = Target(Rectangle(step.name, start, extent), parameter, at, transposed)
    if len(at) < len(start) or target.extent != filled:
        raise _NoPlan(f"{step.name}: {extent} become {filled} of {parameter}")
    return target


def _rectangle(region: Region, shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return start and extent of the rectangle that a view is, in a tensor of this shape and these strides."""
    left, start = region[2], [0] * len(shape)
    for axis in sorted((axis for axis, size in enumerate(shape) if size > 1), key=lambda axis: -strides[axis]):
        start[axis], left = divmod(left, strides[axis])
    extent, sizes = [1] * len(shape), [(size, stride) for size, stride in zip(*region[:2], strict=True) if size != 1]
    axes = [axis for _, stride in sizes for axis, each in enumerate(strides) if each == stride and shape[axis] > 1]
    if left or len(axes) != len(sizes) or axes != sorted(set(axes)):
        raise _NoPlan(f"a view of size {region[0]} and stride {region[1]} is no rectangle of shape {shape}")
    for axis, (size, _) in zip(axes, sizes, strict=True):
        extent[axis] = size
    if any(begin + size > whole for begin, size, whole in zip(start, extent, shape, strict=True)):
        raise _NoPlan(f"a view of size {region[0]} at element {region[2]} is no rectangle of shape {shape}")
    return tuple(start), tuple(extent)


def _check_taken_once(targets: Iterable[Target]) -> None:
    of_tensor: defaultdict[str, list[Rectangle]] = defaultdict(list)
    for target in targets:
        of_tensor[target.source.name].append(target.source)
    for name, parts in of_tensor.items():
        if any(one.shared(other) is not None for one, other in combinations(parts, 2)):
            raise _NoPlan(f"a part of {name} is loaded twice")
