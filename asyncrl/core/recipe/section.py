"""The base class of recipe sections, and the ranges of their numbers and texts."""

from typing import Annotated

import msgspec
from msgspec import Meta

Count = Annotated[int, Meta(ge=1)]
NonNegative = Annotated[int, Meta(ge=0)]
Seconds = Annotated[float, Meta(gt=0, le=1e8)]
Positive = Annotated[float, Meta(gt=0)]
Text = Annotated[str, Meta(min_length=1)]
FileName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*\Z")]


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of every part of a recipe: immutable, keyword-only, unknown keys refused."""
