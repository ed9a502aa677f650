"""Reads which tensors a Hugging Face folder holds, by name and shape, and checks that a publication brings exactly those, or
the adapters of exactly those."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from asyncrl.core.adapters import PEFT_PREFIX, AdapterSettings
from asyncrl.core.architectures.architecture import OUTPUT
from asyncrl.core.errors import RecipeError, WeightMismatch
from asyncrl.core.files.weight_files import stored_tensors
from asyncrl.core.publication import ShardRecord
from asyncrl.core.text import first_few

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
        WeightMismatch: the folder has no safetensors files that can be read, so there is nothing to compare with.
    """

    def __init__(self, folder: str, adapters: AdapterSettings | None = None) -> None:
        self._folder, self._adapters = folder, adapters
        try:
            stored = stored_tensors(Path(folder), "model.path")
        except RecipeError as error:
            raise WeightMismatch(f"publications have nothing to be compared with: {error.problem}; {error.remedy}") from error
        config = json.loads((Path(folder) / "config.json").read_text())
        self._optional = {OUTPUT} if config.get("tie_word_embeddings") else set()
        self.shapes = {name: tensor.shape for name, tensor in stored.items()}
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
            *([f"lacks {first_few(sorted(missing), _NAMED)}"] if missing else []),
            *([f"has unknown {first_few(sorted(unknown), _NAMED)}"] if unknown else []),
            *([f"has {first_few(reshaped, _NAMED)}"] if reshaped else []),
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
