"""The limits of a buffer that a resumed run may change.

What always holds: they are part of the buffer's state, and every change of them is in the journal. So a replay applies to each
record the limits that held when it was written, whatever the recipe says now.
"""

from typing import Self

import msgspec

from asyncrl.core.recipe.buffer import AccuracyWindowFilterConfig, BufferConfig, ZeroVarianceFilterConfig


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """The keys of section ``buffer`` of the same names."""

    filters: tuple[ZeroVarianceFilterConfig | AccuracyWindowFilterConfig, ...]
    max_attempts: int
    max_failures: int

    @classmethod
    def of(cls, buffer: BufferConfig) -> Self:
        """Return the limits that a recipe names."""
        return cls(**{name: getattr(buffer, name) for name in cls.__struct_fields__})
