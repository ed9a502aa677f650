"""Reads which tensors a Hugging Face folder holds, by name and shape, and checks that a publication brings exactly those, or
the adapters of exactly those."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from safetensors import safe_open

from asyncrl.core.adapters import PEFT_PREFIX, AdapterSettings
from asyncrl.core.errors import WeightMismatch
from asyncrl.core.publication import ShardRecord

_NAMED = 4
"""How many tensors an error names; it counts the others."""


class Checkpoint:
    """Names and shapes of the tensors that every publication must bring: those that the engine began with, or their adapters.

    A tied output embedding may be absent or present on either side, because it is the input embedding.

    Attributes:
        shapes: the shape of each tensor.

    Args:
        adapters: what is published are adapters with these settings; None if it is whole weights.

    Raises:
        WeightMismatch: the folder has no safetensors files, so there is nothing to compare with.
    """

    def __init__(self, folder: str, adapters: AdapterSettings | None = None) -> None:
        self._folder, self._adapters = folder, adapters
        files = sorted(Path(folder).glob("*.safetensors"))
        if not files:
            raise WeightMismatch(
                f"{folder} has no *.safetensors file to compare publications with; save the model in that format"
            )
        config = json.loads((Path(folder) / "config.json").read_text())
        self._optional = {"lm_head.weight"} if config.get("tie_word_embeddings") else set()
        self.shapes: dict[str, tuple[int, ...]] = {}
        for file in files:
            with safe_open(file, "pt") as tensors:
                self.shapes |= {name: tuple(tensors.get_slice(name).get_shape()) for name in tensors.keys()}  # noqa: SIM118
        if adapters is not None:
            self.shapes = _shapes_of_adapters(self.shapes, adapters)

    def check(self, shards: Iterable[ShardRecord]) -> None:
        """Check that ``shards`` belong to exactly the tensors of the folder.

        Raises:
            WeightMismatch: tensors are missing, unknown or of another shape; the text names them.
        """
        published = {shard.name: tuple(shard.shape) for shard in shards}
        missing = self.shapes.keys() - published.keys() - self._optional
        unknown = published.keys() - self.shapes.keys() - self._optional
        reshaped = [
            f"{name} as {list(published[name])} instead of {list(self.shapes[name])}"
            for name in sorted(published.keys() & self.shapes.keys())
            if published[name] != self.shapes[name]
        ]
        problems = [
            *([f"lacks {_some(sorted(missing))}"] if missing else []),
            *([f"has unknown {_some(sorted(unknown))}"] if unknown else []),
            *([f"has {_some(reshaped)}"] if reshaped else []),
        ]
        if problems:
            remedy = (
                "the learner must export every tensor of that folder under its Hugging Face name"
                if self._adapters is None
                else f"learner and engine must have the same learner.lora, and the engine's is of rank {self._adapters.rank} for "
                f"{', '.join(self._adapters.targets)}"
            )
            raise WeightMismatch(f"the publication {', '.join(problems)}, compared with {self._folder}; {remedy}")


def _shapes_of_adapters(weights: Mapping[str, tuple[int, ...]], settings: AdapterSettings) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the two matrices beside each weight that has adapters."""
    shapes: dict[str, tuple[int, ...]] = {}
    for name, shape in weights.items():
        projection = name.removesuffix(".weight")
        if name != projection and projection.rsplit(".", 1)[-1] in settings.targets:
            outputs, inputs = shape
            shapes[f"{PEFT_PREFIX}{projection}.lora_A.weight"] = (settings.rank, inputs)
            shapes[f"{PEFT_PREFIX}{projection}.lora_B.weight"] = (outputs, settings.rank)
    return shapes


def _some(names: list[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more
