"""The base class of recipe sections, the ranges of their numbers and texts, and the keys that may be ``auto``."""

from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import Meta, inspect

from asyncrl.core.errors import RecipeError
from asyncrl.core.reward_range import LARGEST_REWARD
from asyncrl.core.text import short

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


class _SectionType(msgspec.StructMeta):
    """The type of all sections' classes, which refuses wrong keys as a recipe's file does."""

    if not TYPE_CHECKING:  # a section's fields say how it is made; type checkers and editors go by them alone

        def __call__(cls, *positional: object, **keys: object) -> Any:
            """Make a section.

            Raises:
                RecipeError: the first of what is wrong with the keys; all others are its notes.
            """
            try:
                return super().__call__(*positional, **keys)
            except TypeError:
                first, *others = _wrong_keys(cls, positional, keys)
            for other in others:
                first.add_note(str(other))
            raise first


class Section(msgspec.Struct, metaclass=_SectionType, frozen=True, kw_only=True, forbid_unknown_fields=True):
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


def _wrong_keys(section: type[Section], positional: Sequence[object], keys: Mapping[str, object]) -> Iterator[RecipeError]:
    """Yield what is wrong with the keys that a section is to be made of."""
    name, fields = section.__name__, {field.name: field for field in msgspec.structs.fields(section)}
    for value in positional:
        yield RecipeError(name, f"{short(value)} has no key", f"write key=value; the keys of {name} are {', '.join(fields)}")
    for key in keys:
        if key == section.__struct_config__.tag_field:
            yield RecipeError(f"{name}.{key}", "unknown key", f"take it out: {name} is of kind {section.__struct_config__.tag}")
        elif key not in fields:
            below = [path for path in all_keys(inspect.type_info(section), name) if path.rpartition(".")[2] == key]
            yield unknown_key(name, key, list(fields), below, name)
    for key, field in fields.items():
        if field.required and key not in keys:
            yield RecipeError(f"{name}.{key}", "missing", f"give {key}=..., which has no default")


def unknown_key(place: str, key: str, siblings: Sequence[str], elsewhere: Sequence[str], section: str) -> RecipeError:
    """Return the error about a key that there is not, with the one that was probably meant.

    Args:
        place: dotted path of the section.
        siblings: the keys that there are.
        elsewhere: dotted paths of keys of this name in other sections.
        section: how the section is called.
    """
    here = joined(place, key)
    near = [joined(place, each) for each in get_close_matches(key, siblings, n=1)]
    if meant := near or [path for path in elsewhere if path != here]:
        remedy = did_you_mean(meant)
    elif siblings:
        remedy = f"the keys of {section} are {', '.join(siblings)}"
    else:
        remedy = f"{section} has no keys; take it out"
    return RecipeError(here, "unknown key", remedy)


def did_you_mean(names: Sequence[str]) -> str:
    """Ask whether one of these was meant."""
    return f"did you mean {' or '.join(f'`{name}`' for name in names)}?"


def all_keys(value_type: inspect.Type, place: str = "") -> Iterator[str]:
    """Yield the dotted path of every key below a type, each once."""
    match value_type:
        case inspect.UnionType(types=types):
            yield from dict.fromkeys(path for kind in types for path in all_keys(kind, place))
        case inspect.StructType(fields=fields):
            for field in fields:
                here = joined(place, field.encode_name)
                yield here
                yield from all_keys(field.type, here)
        case inspect.VarTupleType(item_type=item):
            yield from all_keys(item, f"{place}[0]")


def joined(place: str, key: str) -> str:
    """Return the dotted path of a key."""
    return f"{place}.{key}" if place else key
