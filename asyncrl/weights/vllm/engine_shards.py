"""Which part of each Hugging Face tensor becomes which part of which parameter of one worker of a vLLM engine.

vLLM merges queries, keys and values into one matrix, gate and up into another, and the experts of a layer into two; it divides
them over its tensor-parallel workers, and pads the vocabulary. Here this follows from the architecture alone. What always holds,
and is compared with vLLM's own loaders in the tests: the parts and the padding fill every parameter exactly once.
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from asyncrl.core.architectures.architecture import EMBEDDING, OUTPUT, Architecture, ModelTensor, divided_dimension
from asyncrl.core.rectangle import Rectangle

_VOCABULARY_STEP = 64
"""vLLM pads the vocabulary to a multiple of this."""
_MERGED = {
    "q_proj": "qkv_proj",
    "k_proj": "qkv_proj",
    "v_proj": "qkv_proj",
    "gate_proj": "gate_up_proj",
    "up_proj": "gate_up_proj",
}


class EngineLayout(msgspec.Struct, frozen=True):
    """How an engine's workers divide the model.

    Attributes:
        tensor: workers that divide each layer.
        data: groups of so many workers. Each group has all of every layer but of the experts, which all workers divide.
        whole_experts: whether they share out the experts instead of dividing each.
    """

    tensor: int = 1
    data: int = 1
    whole_experts: bool = False

    @property
    def workers(self) -> int:
        """How many workers there are; those of one group follow each other."""
        return self.tensor * self.data


class Target(NamedTuple):
    """Where a part of a tensor goes.

    Attributes:
        source: the part.
        parameter: vLLM's name of the parameter.
        at: index of the part's first element in the parameter; for experts, the first number is the place of the expert.
        transposed: whether the part's rows become columns there.
    """

    source: Rectangle
    parameter: str
    at: tuple[int, ...]
    transposed: bool = False

    @property
    def extent(self) -> tuple[int, ...]:
        """How many elements of the parameter it takes along each dimension."""
        return (1,) * (len(self.at) - len(self.source.extent)) + self.turned(self.source.extent)

    def turned(self, of_source: tuple[int, ...]) -> tuple[int, ...]:
        """Return numbers for the dimensions of the source, in the order of the parameter's."""
        return of_source[::-1] if self.transposed else of_source


def check_engine(architecture: Architecture, layout: EngineLayout) -> tuple[str, int] | None:
    """Return what of the model the workers cannot divide, and how many workers should divide it; None if they can."""
    counts = [
        (architecture.heads, "attention heads", layout.tensor),
        (_padded(architecture.vocabulary), "vocabulary entries", layout.tensor),
    ]
    if not all(architecture.with_experts):
        counts.append((architecture.intermediate_size, "feed-forward channels", layout.tensor))
    if architecture.shared_size:
        counts.append((architecture.shared_size, "channels of the shared expert", layout.tensor))
    if any(architecture.with_experts) and layout.whole_experts:
        counts.append((architecture.experts, "experts", layout.workers))
    elif any(architecture.with_experts):
        counts.append((architecture.expert_size, "channels of an expert", layout.workers))
    for count, what, workers in counts:
        if count % workers:
            return f"{count} {what}", workers
    keys = architecture.key_value_heads
    shared = not architecture.sinks and layout.tensor % keys == 0  # vLLM's gpt-oss has each head on one worker
    return (f"{keys} key-value heads", layout.tensor) if keys % layout.tensor and not shared else None


def targets(architecture: Architecture, layout: EngineLayout, worker: int) -> Iterator[Target]:
    """Yield where the parts of tensors go that worker number ``worker`` holds."""
    in_group = worker % layout.tensor
    for tensor in architecture.tensors():
        if tensor.expert is not None:
            yield from _of_expert(architecture, layout, worker, tensor)
        elif tensor.name in (EMBEDDING, OUTPUT):
            rows = _padded(architecture.vocabulary) // layout.tensor
            first, end = in_group * rows, min((in_group + 1) * rows, architecture.vocabulary)
            if first < end:
                yield Target(_rows(tensor, first, end - first), _in_engine(architecture, tensor.name), (0, 0))
        else:
            yield _layer_target(architecture, layout, in_group, tensor)


def parameters(architecture: Architecture, layout: EngineLayout, worker: int) -> dict[str, tuple[int, ...]]:
    """Return the shape of each parameter of a worker, padding included."""
    shapes: dict[str, tuple[int, ...]] = {}
    vocabulary = _padded(architecture.vocabulary) // layout.tensor
    for target in targets(architecture, layout, worker):
        ends = tuple(map(sum, zip(target.at, target.extent, strict=True)))
        before = shapes.get(target.parameter, (0,) * len(ends))
        shapes[target.parameter] = tuple(map(max, before, ends))
    if (
        architecture.expert_names.joint
    ):  # of workers that divide an expert, one has the bias of what it gives, and the others zeros
        biases = {name: (shape[0], architecture.hidden_size) for name, shape in shapes.items() if name.endswith("w13_bias")}
        shapes |= {name.replace("w13_bias", "w2_bias"): shape for name, shape in biases.items()}
    of_vocabulary = [EMBEDDING] if architecture.tied else [EMBEDDING, OUTPUT]
    names = (_in_engine(architecture, name) for name in of_vocabulary)
    return shapes | dict.fromkeys(names, (vocabulary, architecture.hidden_size))


def padding(architecture: Architecture, layout: EngineLayout, worker: int) -> int:
    """Count the elements of a worker's parameters that no tensor has."""
    filled = sum(target.source.elements for target in targets(architecture, layout, worker))
    return sum(map(math.prod, parameters(architecture, layout, worker).values())) - filled


def _padded(vocabulary: int) -> int:
    return -(-vocabulary // _VOCABULARY_STEP) * _VOCABULARY_STEP


def _in_engine(architecture: Architecture, name: str) -> str:
    """Return vLLM's name for a parameter whose name is Hugging Face's but for that: its gpt-oss has names of its own."""
    return name.replace(".self_attn.", ".attn.").replace("embed_tokens", "embedding") if architecture.sinks else name


def _rows(tensor: ModelTensor, first: int, count: int) -> Rectangle:
    rest = tensor.shape[1:]
    return Rectangle(tensor.name, (first, *(0 for _ in rest)), (count, *rest))


def _layer_target(architecture: Architecture, layout: EngineLayout, worker: int, tensor: ModelTensor) -> Target:
    """A tensor of a layer, experts excepted, or the last norm."""
    *prefix, module, kind = tensor.name.split(".")
    before = _rows_before(architecture)
    merged = "fused_qkv_a_proj" if module in before else _MERGED.get(module, module)
    if architecture.latent is not None and module == "q_proj":
        merged = module
    parameter = _in_engine(architecture, ".".join([*prefix, merged, kind]))
    dimension, rest = divided_dimension(tensor.name), (0,) * (len(tensor.shape) - 1)
    if dimension is None:
        return Target(Rectangle(tensor.name, (0, *rest), tensor.shape), parameter, (before.get(module, 0), *rest))
    if _has_whole(architecture, layout, tensor):
        return Target(_rows(tensor, 0, tensor.shape[0]), parameter, (tensor.shape[0] if module == "up_proj" else 0, 0))
    if dimension == 1:
        rows, columns = tensor.shape
        size = columns // layout.tensor
        return Target(Rectangle(tensor.name, (0, worker * size), (rows, size)), parameter, (0, 0))
    size, holder = tensor.shape[0] // layout.tensor, worker
    if module in ("k_proj", "v_proj") and architecture.key_value_heads < layout.tensor:
        # Neighbouring workers have the same key-value head.
        size, holder = architecture.head_size, worker // (layout.tensor // architecture.key_value_heads)
    queries = architecture.heads // layout.tensor * architecture.head_size
    place = {"k_proj": queries, "v_proj": queries + size, "up_proj": size}.get(module, 0)
    return Target(_rows(tensor, holder * size, size), parameter, (place, *rest))


def _rows_before(architecture: Architecture) -> dict[str, int]:
    """Where what makes the small vectors of latent attention begins in the matrix that vLLM makes of both."""
    latent = architecture.latent
    return {} if latent is None or not latent.query_rank else {"q_a_proj": 0, "kv_a_proj_with_mqa": latent.query_rank}


def _has_whole(architecture: Architecture, layout: EngineLayout, tensor: ModelTensor) -> bool:
    """Whether each worker has a matrix whole that others divide: in vLLM's DeepSeek models, workers that share out experts over
    several groups divide the tokens for the expert that all of them go to, and not that expert."""
    of_shared = f".{architecture.expert_names.shared}." in tensor.name
    divides_tokens = layout.whole_experts and layout.data > 1 and layout.tensor > 1
    return of_shared and divides_tokens and architecture.latent is not None


def _of_expert(architecture: Architecture, layout: EngineLayout, worker: int, tensor: ModelTensor) -> Iterator[Target]:
    assert tensor.expert is not None
    size, place, holder = architecture.expert_size // layout.workers, tensor.expert, worker
    if layout.whole_experts:
        here = architecture.experts // layout.workers
        size, place, holder = architecture.expert_size, tensor.expert % here, 0
        if tensor.expert // here != worker:
            return
    layer, module, names = tensor.name.split(".experts.")[0], tensor.name.split(".")[-2], architecture.expert_names
    merged = f"{layer}.experts.routed_experts."
    if names.joint:
        yield from _of_joint_expert(tensor, merged, place, holder, size)
        return
    if module == names.down:
        part = Rectangle(tensor.name, (0, holder * size), (tensor.shape[0], size))
        yield Target(part, merged + "w2_weight", (place, 0, 0))
    else:
        yield Target(_rows(tensor, holder * size, size), merged + "w13_weight", (place, size if module == names.up else 0, 0))


def _of_joint_expert(tensor: ModelTensor, merged: str, place: int, holder: int, size: int) -> Iterator[Target]:
    """As :func:`_of_expert`, of one whose gate and up are one matrix. ``holder`` has ``size`` channels of it."""
    match tensor.name.rpartition(".")[2]:
        case "gate_up_proj":
            part = Rectangle(tensor.name, (0, 2 * holder * size), (tensor.shape[0], 2 * size))
            yield Target(part, merged + "w13_weight", (place, 0, 0), transposed=True)
        case "gate_up_proj_bias":
            yield Target(_rows(tensor, 2 * holder * size, 2 * size), merged + "w13_bias", (place, 0))
        case "down_proj":
            yield Target(_rows(tensor, holder * size, size), merged + "w2_weight", (place, 0, 0), transposed=True)
        case _:
            if holder == 0:
                yield Target(_rows(tensor, 0, tensor.shape[0]), merged + "w2_bias", (place, 0))
