"""Decodes a composed mapping into a typed recipe, or into errors that a user can act on.

What always holds: a recipe that :func:`decode_recipe` returns fits the schema and breaks no rule between keys. All wrong keys are
found in one pass; rules between keys are checked once every key is right by itself and every ``auto`` has been chosen.
"""

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from difflib import get_close_matches
from typing import Any, get_type_hints

import msgspec
from msgspec import inspect

from asyncrl.core.errors import RecipeError
from asyncrl.core.recipe.describe import describe, quote_it
from asyncrl.core.recipe.rules.broken_rules import broken_rules
from asyncrl.core.recipe.schema import Recipe
from asyncrl.core.recipe.section import AUTO, all_keys, did_you_mean, is_automatic, is_usual, joined, unknown_key, unmarked
from asyncrl.core.text import writable

LARGEST_INTEGER = 1_000_000_000
"""The largest integer that a recipe may hold if its key sets no upper bound; no count in a run comes near it."""


Chooser = Callable[[Recipe, Set[str]], Recipe]
"""Takes a recipe, in which ``auto`` keys have the schema's defaults, and the names of these keys; returns the recipe with their
values chosen."""


def decode_recipe(mapping: Mapping[str, Any], choose: Chooser = lambda recipe, automatic: recipe) -> Recipe:
    """Decode a plain mapping, such as a YAML file gives, into a typed recipe.

    A section whose ``kind`` is left out has the default's kind, or the usual one where there is no default.

    Args:
        mapping: sections and keys.
        choose: chooses the values of the keys that are ``auto``; by default these keep the schema's defaults.

    Raises:
        RecipeError: the first thing wrong, with its place, the value seen and what would be right; all others are its notes.
    """
    reader = _SectionReader()
    complete = reader.section(_schema(), mapping, place="")
    _raise_together(reader.problems)
    recipe = choose(msgspec.convert(complete, Recipe), AUTOMATIC_KEYS - reader.chosen)
    _raise_together(list(broken_rules(recipe)))
    return recipe


def kind_at(mapping: Mapping[str, Any], key: str) -> str | None:
    """Return the kind of the section at a dotted key, also if it is left out there; None if there is no section that has one."""
    found: Any = _SectionReader().section(_schema(), mapping, place="")
    for part in key.split("."):
        found = found.get(part) if isinstance(found, Mapping) else None
    return kind_of(found)


def kind_of(section: object) -> str | None:
    """Return the kind that a section names: by ``kind``, or by ``keep`` where that tells kinds apart; None if it names none."""
    named = [section.get(tag) for tag in ("kind", "keep")] if isinstance(section, Mapping) else []
    return next((kind for kind in named if isinstance(kind, str)), None)


def _schema() -> inspect.StructType:
    schema = inspect.type_info(Recipe)
    assert isinstance(schema, inspect.StructType)
    return schema


def _raise_together(problems: Sequence[RecipeError]) -> None:
    if problems:
        first, *others = problems
        for other in others:
            first.add_note(str(other))
        raise first


class _SectionReader:
    """Walks a mapping along the schema, fills in kinds that were left out, and collects every problem in recipe order."""

    def __init__(self) -> None:
        self.problems: list[RecipeError] = []
        self.chosen: set[str] = set()
        """Keys that may be ``auto`` and have a value of their own."""

    def section(
        self, schema: inspect.StructType, value: Any, place: str, kinds: Mapping[Any, inspect.StructType] | None = None
    ) -> Any:
        """Read a section; ``kinds`` are all that it may be of, by name, if there are several."""
        if not isinstance(value, Mapping):
            self._refuse(place or "recipe", f"{_show(value)} is not a section", f"give it keys: {_keys(schema)}")
            return value
        fields = {field.encode_name: field for field in schema.fields}
        hints = get_type_hints(schema.cls, include_extras=True)
        complete: dict[str, Any] = {}
        for key, entry in value.items():
            here = joined(place, str(key))
            if key in fields and is_automatic(fields[key].type):
                if entry != AUTO:
                    self.chosen.add(here)
                    complete[key] = self._value(fields[key].type, None, hints[key], entry, here)
            elif key in fields:
                complete[key] = self._value(fields[key].type, _default_kind(fields[key]), hints[key], entry, here)
            elif key == schema.tag_field:
                complete[key] = entry
            else:
                self._refuse_unknown(schema, place, str(key), entry, kinds or {})
        for name, field in fields.items():
            if field.required and name not in value:
                self._refuse(joined(place, name), "missing", f"it must be {_expected(field.type)}")
        return complete

    def _value(self, value_type: inspect.Type, default: Any, hint: Any, value: Any, place: str) -> Any:
        match value_type:
            case inspect.VarTupleType(item_type=item) if _sections(item) and isinstance(value, list) and value:
                return [self._value(item, None, hint, entry, f"{place}[{index}]") for index, entry in enumerate(value)]
            case inspect.DictType(value_type=item) if _sections(item) and isinstance(value, Mapping) and value:
                return {key: self._entry(value_type, key, hint, entry, joined(place, str(key))) for key, entry in value.items()}
            case inspect.UnionType(includes_none=True) if value is None:
                return None
            case inspect.UnionType() | inspect.StructType() if sections := _sections_for(value_type, value):
                if sections[0].tag_field:
                    return self._tagged(sections, default, value, place)
                return self.section(sections[0], value, place)
        try:
            msgspec.convert(value, hint)
        except (msgspec.ValidationError, UnicodeEncodeError):  # half of a surrogate pair where no text belongs
            quotes = _needless_quotes(hint, value) or _unquoted(value_type, value, place)
            self._refuse(place, f"{_show(value)} does not fit", f"must be {_expected(value_type)}{quotes}")
        else:
            if bound := _broken_bound(value_type, value):
                self._refuse(place, f"{_show(value)} does not fit", f"must be {describe(value_type)}, and {bound}")
        return value

    def _entry(self, mapping: inspect.DictType, key: Any, hint: Any, value: Any, place: str) -> Any:
        """Read a section that the recipe gives a name of its own."""
        pattern = mapping.key_type.pattern if isinstance(mapping.key_type, inspect.StrType) else None
        if not isinstance(key, str) or (pattern and not re.search(pattern, key)):
            remedy = f"must be {describe(mapping.key_type)}{_unquoted(mapping.key_type, key, place)}"
            self._refuse(place, f"{_show(key)} cannot be a name here", remedy)
            return value
        return self._value(mapping.value_type, None, hint, value, place)

    def _tagged(self, sections: Sequence[inspect.StructType], default: Any, value: Any, place: str) -> Any:
        kinds = {section.tag: section for section in sections}
        tag_field = sections[0].tag_field
        assert tag_field is not None
        if not isinstance(value, Mapping):
            self._refuse(place, f"{_show(value)} is not a section", f"set {place}.{tag_field} to one of {_listed(kinds)}")
            return value
        usual = next((section.tag for section in sections if is_usual(section)), None)
        kind = value.get(tag_field, default or usual)
        if not (isinstance(kind, str) and kind in kinds):
            near = _near_kind(kind, list(kinds)) if isinstance(kind, str) else None
            guess = f"{did_you_mean([near])} it " if near else ""
            problem, remedy = f"{_show(kind)} is not a known kind", f"{guess}must be one of {_listed(kinds)}"
            self._refuse(joined(place, tag_field), problem, remedy)
            return value
        return self.section(kinds[kind], {**value, tag_field: kind}, place, kinds)

    def _refuse_unknown(
        self, schema: inspect.StructType, place: str, key: str, entry: object, kinds: Mapping[Any, inspect.StructType]
    ) -> None:
        here = joined(place, key)
        elsewhere = {name: _with_last_part(str(name)) for name in entry} if isinstance(entry, Mapping) else {}
        if elsewhere and all(elsewhere.values()):  # keys of a recipe, in a section that there is not
            for name, paths in elsewhere.items():
                self._refuse(joined(here, str(name)), "unknown key", did_you_mean(paths))
            return
        if of := [str(name) for name, other in kinds.items() if key in (field.encode_name for field in other.fields)]:
            problem = f"a key of kind {_listed(of)}, and not of kind {schema.tag}"
            wanted = of[0] if len(of) == 1 else f"one of {_listed(of)}"
            remedy = (
                f"set {joined(place, str(schema.tag_field))} to {wanted}, or take it out; if it is not in your file, a recipe "
                f"in its list `defaults` has it: give the section on the command line, as {place}={{{schema.tag_field}: "
                f"{schema.tag}, ...}}, which takes its place, or extend no recipe whose {place} is of another kind"
            )
            self._refuse(here, problem, remedy)
            return
        kind = f" of kind {schema.tag}" if schema.tag_field else ""
        siblings = [field.encode_name for field in schema.fields]
        section = f"{place or 'a recipe'}{kind}"
        self.problems.append(unknown_key(place, key, siblings, _with_last_part(key), section))

    def _refuse(self, place: str, problem: str, remedy: str) -> None:
        self.problems.append(RecipeError(place, problem, remedy))


def _with_last_part(name: str) -> list[str]:
    """Return all keys of a recipe whose last part is ``name``."""
    return [path for path in all_keys(_schema()) if path.rpartition(".")[2] == name]


def _near_kind(kind: str, kinds: list[Any]) -> str | None:
    """Return the kind that was probably meant: one that begins with what was written, or else one that differs by a typo."""
    longer = [each for each in kinds if each.startswith(f"{kind}_")]
    return next(iter(longer or get_close_matches(kind, kinds, n=1, cutoff=0.75)), None)


def _broken_bound(value_type: inspect.Type, value: Any) -> str:
    """Return which bound common to all recipes this value breaks; empty if it breaks none."""
    if isinstance(value, float) and not math.isfinite(value):
        return "finite"
    value_type = unmarked(value_type)
    types = value_type.types if isinstance(value_type, inspect.UnionType) else (value_type,)
    integers = [number for number in types if isinstance(number, inspect.IntType)]
    if isinstance(value, int) and value > LARGEST_INTEGER and any(number.le is number.lt is None for number in integers):
        return f"<= {LARGEST_INTEGER:,}"
    return "" if _is_writable(value) else "of characters that UTF-8 can hold"


def _is_writable(value: Any) -> bool:
    """Return whether every text in ``value`` can be written. Text from environment variables and file names sometimes cannot."""
    if isinstance(value, str):
        return writable(value) == value
    if isinstance(value, Mapping):
        return all(_is_writable(key) and _is_writable(entry) for key, entry in value.items())
    return all(map(_is_writable, value)) if isinstance(value, list | tuple) else True


def _default_kind(field: inspect.Field) -> Any:
    """Return the kind of a section that does not name one; None if it must name one."""
    return field.default.__struct_config__.tag if isinstance(field.default, msgspec.Struct) else None


def _sections(value_type: inspect.Type) -> list[inspect.StructType]:
    """Return the section types that a value of this type can have."""
    types = value_type.types if isinstance(value_type, inspect.UnionType) else (value_type,)
    return [alternative for alternative in types if isinstance(alternative, inspect.StructType)]


def _sections_for(value_type: inspect.Type, value: Any) -> list[inspect.StructType]:
    """Return the section types that this value may be meant for; none if it is a plain value and the type allows plain values."""
    types = value_type.types if isinstance(value_type, inspect.UnionType) else (value_type,)
    has_plain = any(not isinstance(alternative, inspect.StructType | inspect.NoneType) for alternative in types)
    return _sections(value_type) if isinstance(value, Mapping) or not has_plain else []


def _expected(value_type: inspect.Type) -> str:
    match value_type:
        case inspect.StructType():
            return f"a section with {_keys(value_type)}"
        case inspect.VarTupleType(item_type=inspect.StructType() as item):
            return f"{describe(value_type)}, each with {_keys(item)}"
    return describe(value_type)


def _unquoted(value_type: inspect.Type, value: Any, place: str) -> str:
    """Say what to do about a value that YAML has not taken for text, where the key wants text; empty if that is not the case."""
    if not isinstance(value, bool | int | float) or not _takes_text(value_type):
        return ""
    return f"; {quote_it(place)}"


def _needless_quotes(hint: Any, value: Any) -> str:
    """Say what to do about a text that would fit if it were not one, such as ``"20"``; empty if that is not the case."""
    try:
        msgspec.convert(msgspec.json.decode(value if isinstance(value, str) else ""), hint)
    except (msgspec.DecodeError, UnicodeEncodeError):
        return ""
    return "; write it without quotes"


def _takes_text(value_type: inspect.Type) -> bool:
    match value_type:
        case inspect.Metadata(type=inner):
            return _takes_text(inner)
        case inspect.UnionType(types=several):
            return any(map(_takes_text, several))
        case inspect.LiteralType(values=values):
            return any(isinstance(each, str) for each in values)
    return isinstance(value_type, inspect.StrType)


def _keys(schema: inspect.StructType) -> str:
    return _listed([field.encode_name for field in schema.fields])


def _listed(names: Mapping[Any, Any] | Sequence[str]) -> str:
    return ", ".join(str(name) for name in names)


def _show(value: Any) -> str:
    text = repr(value) if value is not None else "null"
    return text if len(text) <= 60 else f"{text[:57]}..."


def _automatic_keys(schema: inspect.StructType, place: str = "") -> Iterator[str]:
    """Yield the dotted path of every key that may be ``auto``. Only sections that have a single kind have such keys."""
    for field in schema.fields:
        here = joined(place, field.encode_name)
        if is_automatic(field.type):
            yield here
        elif isinstance(field.type, inspect.StructType):
            yield from _automatic_keys(field.type, here)


AUTOMATIC_KEYS = frozenset(_automatic_keys(_schema()))
"""The dotted path of every key that may be ``auto``."""
