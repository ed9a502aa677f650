"""The base class of recipe sections, the ranges of their numbers and texts, and the keys that may be ``auto``."""

from typing import Annotated, ClassVar, Literal

import msgspec
from msgspec import Meta, inspect

from asyncrl.core.reward_range import LARGEST_REWARD

Count = Annotated[int, Meta(ge=1)]
NonNegative = Annotated[int, Meta(ge=0)]
Seconds = Annotated[float, Meta(gt=0, le=1e8)]
Positive = Annotated[float, Meta(gt=0)]
Penalty = Annotated[float, Meta(gt=0, le=LARGEST_REWARD)]
AtLeastOne = Annotated[float, Meta(ge=1)]
Share = Annotated[float, Meta(gt=0, lt=1)]
UpToOne = Annotated[float, Meta(gt=0, le=1)]
Text = Annotated[str, Meta(min_length=1)]
FileName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*\Z")]

AUTO: Literal["auto"] = "auto"
"""The value of a recipe key that is to be chosen for the machine and the model. A key that may be ``auto`` is ``auto`` if the
recipe leaves it out; if nothing chooses its value, the schema's default applies."""
AUTOMATIC = Meta(extra={AUTO: True})
"""Marks, as ``Annotated[Count, AUTOMATIC]``, a key that may be ``auto``."""


def is_automatic(value_type: inspect.Type) -> bool:
    """Return whether a key of this type may be ``auto``."""
    return isinstance(value_type, inspect.Metadata) and bool(value_type.extra and value_type.extra.get(AUTO))


def unmarked(value_type: inspect.Type) -> inspect.Type:
    """Return a key's type without the mark that it may be ``auto``."""
    return value_type.type if isinstance(value_type, inspect.Metadata) else value_type


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of every part of a recipe: immutable, keyword-only, unknown keys refused.

    Attributes:
        usual: whether a section that must be there, may be of several kinds and names none, is of this kind.
    """

    usual: ClassVar[bool] = False


class LossSection(Section, frozen=True):
    """Base of the losses, whose rules ask what a loss is like, not which one it is.

    Attributes:
        ratio_keys: its keys that only act where the ratio of policy and anchor is not 1.
        has_clip_range: whether ``algorithm.correction.trust_region_decay`` has a range of ratios to narrow.
        has_ratio: whether it compares the policy with an anchor.
        imitates: whether it raises the probability of every token, whatever its reward.
    """

    ratio_keys: ClassVar[tuple[str, ...]] = ()
    has_clip_range: ClassVar[bool] = False
    has_ratio: ClassVar[bool] = True
    imitates: ClassVar[bool] = False


def is_usual(section: inspect.StructType) -> bool:
    """Return whether a section that names no kind is of this one, where there is no default."""
    return issubclass(section.cls, Section) and section.cls.usual
