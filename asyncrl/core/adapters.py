"""What an engine must know of the low-rank adapters that are published to it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from asyncrl.core.recipe.schema import Recipe

PEFT_PREFIX = "base_model.model."
"""What the names of adapters begin with in PEFT's format; the name of the projection follows."""


class AdapterSettings(msgspec.Struct, frozen=True):
    """The adapters of a run, and how many versions of them an engine holds.

    Attributes:
        rank, alpha, targets: the recipe's keys of these names in ``learner.lora``.
        versions: policy versions that an engine holds side by side.
    """

    rank: int
    alpha: float
    targets: tuple[str, ...]
    versions: int

    @classmethod
    def of(cls, recipe: Recipe) -> AdapterSettings | None:
        """Take the settings from a recipe; None if it publishes whole weights."""
        lora = recipe.learner.lora
        if lora is None or lora.publish == "merged":
            return None
        versions = recipe.buffer.max_staleness + 1 if recipe.generators.updates == "at_episode" else 1
        return cls(lora.rank, lora.alpha, tuple(sorted(set(lora.targets))), versions)


def adapter_id(slot: int) -> int:
    """Return vLLM's number of the adapter in ``slot`` of an engine; vLLM counts from 1."""
    return slot + 1
