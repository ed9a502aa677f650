"""Writes docs/reference/recipe.md from the recipe's sections: ``python -m docs.pages.recipe``.

Keys, types, ranges, defaults and meanings come from the sections of :class:`asyncrl.core.recipe.schema.Recipe` and from nowhere
else, so the reference is wrong only where these are. A key without a meaning in its section's docstring is an error.
"""

import argparse
import inspect as python_inspect
import json
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import NODEFAULT, inspect

from asyncrl.core.recipe.decode import LARGEST_INTEGER
from asyncrl.core.recipe.describe import describe
from asyncrl.core.recipe.schema import Recipe
from asyncrl.core.recipe.section import AUTO, Section, is_automatic, is_usual
from docs.pages.links import linked

_HEAD = """\
# Recipe reference

<!-- Generated from asyncrl/core/recipe by `python -m docs.pages.recipe`; edit the sections there. -->

Every key of a recipe, for whoever writes one: its range, its default, and what it does. A recipe is a YAML file. A key that
it leaves out has the default below. Unknown keys, and values that contradict one another, are refused. On the command line,
`asyncrl launch recipe.yaml learner.lr=1e-4` sets a key, and `~learner.lr` removes one from the recipe. A section such as
`'algorithm.loss={kind: gspo, clip_low: 1e-3}'` takes the place of one of another kind, with all that the recipe sets there, and
is added to one of the same kind. With `defaults: [quickstart, _self_]` a recipe extends another one, yours or a shipped one.
`${oc.env:HOME}` is replaced by the environment variable, and `${seed}` by the value of that key if the recipe sets it; to
write a literal `${`, use `\\${`.

What is `auto` is chosen at launch, for the machine's processors and memory and for the model. `asyncrl launch recipe.yaml
--dry-run` shows each choice with its reason. The run folder keeps the choices, so a resumed run has the same.
Only `buffer.pipeline_depth: auto`, and what `tune` may turn, changes while the run trains.

An integer without an upper bound in the table is at most {largest}.

"""


def reference() -> str:
    """The reference as Markdown."""
    recipe = inspect.type_info(Recipe)
    assert isinstance(recipe, inspect.StructType)
    return _HEAD.replace("{largest}", f"{LARGEST_INTEGER:,}") + "\n".join(
        _Sections().lines(recipe, place="", default="", shared={})
    )


class _Sections:
    """The lines of all sections. What stands in several places, or is the same in several kinds of a section, is written once."""

    def __init__(self) -> None:
        self._written: dict[type, str] = {}
        """The link to each section that is written."""

    def lines(self, section: inspect.StructType, place: str, default: str, shared: dict[str, str]) -> Iterator[str]:
        """Yield the lines of a section: heading, meaning and keys, then the same of each section in it.

        ``shared`` has the rows of the kinds of this section that are written already, with a link to the kind.
        """
        meaning, of_keys = _documented(section.cls)
        kind = f", `{section.tag_field}: {section.tag}`{default}" if section.tag_field else ""
        if place:
            heading = f"`{place}`{kind}"
            yield f"## {heading}\n"
            if section.fields and section.cls in self._written:
                yield f"As {self._written[section.cls]}.\n"
                return
            link = f"[{place}{kind.replace('`', '')}](#{_anchor(heading)})"
            self._written[section.cls] = link
            yield f"{meaning}\n"
        if section.fields:
            rows = {}
            for field in section.fields:
                key = f"{place}.{field.encode_name}" if place else field.encode_name
                row = f"| `{key}` | {_value(field.type, key)} | {_default(field)} | {_cell(of_keys[field.name])} |"
                rows[row] = (f"`{field.encode_name}`", shared.get(row))
            if own := [row for row, (_, elsewhere) in rows.items() if not elsewhere]:
                yield from ["| key | value | default | meaning |", "|---|---|---|---|", *own, ""]
            for elsewhere in dict.fromkeys(elsewhere for _, elsewhere in rows.values() if elsewhere):
                yield f"As in {elsewhere}: {', '.join(key for key, of in rows.values() if of == elsewhere)}.\n"
            if place:
                shared |= {row: link for row in rows if row not in shared}
        for field in section.fields:
            yield from self._of(field, f"{place}.{field.encode_name}" if place else field.encode_name)

    def _of(self, field: inspect.Field, place: str) -> Iterator[str]:
        if isinstance(field.type, inspect.DictType):
            for kind in _kinds(field.type.value_type):
                if not kind.tag_field:  # otherwise its sections are of the kinds of the section that it stands in
                    yield from self.lines(kind, f"{place}.NAME", "", {})
            return
        entry = "[]" if isinstance(field.type, inspect.VarTupleType) else ""
        shared: dict[str, str] = {}
        for kind in _kinds(field.type):
            chosen = type(field.default) is kind.cls or (field.required and is_usual(kind))
            yield from self.lines(kind, f"{place}{entry}", " (default)" if chosen else "", shared)


def _kinds(value_type: inspect.Type) -> Sequence[inspect.StructType]:
    """The kinds of section that a value, or an entry of a list, can be."""
    if isinstance(value_type, inspect.VarTupleType):
        return _kinds(value_type.item_type)
    types = value_type.types if isinstance(value_type, inspect.UnionType) else (value_type,)
    return [kind for kind in types if isinstance(kind, inspect.StructType)]


def _value(value_type: inspect.Type, key: str) -> str:
    if isinstance(value_type, inspect.DictType) and (kinds := _kinds(value_type.value_type)):
        if not kinds[0].tag_field:
            return f"a mapping of names to sections, see [{key}.NAME](#{_anchor(key)}name)"
        return "a mapping of names to sections of kind " + " or ".join(f"`{kind.tag}`" for kind in kinds)
    kinds = _kinds(value_type)
    if not kinds:
        return _cell(re.sub(r"text matching (\S+)", r"text matching `\1`", describe(value_type)))
    is_list = isinstance(value_type, inspect.VarTupleType)
    what = "a list of sections" if is_list else "a section"
    if kinds[0].tag_field:
        alternatives = value_type.types if isinstance(value_type, inspect.UnionType) else ()
        plain = [describe(one) for one in alternatives if not isinstance(one, inspect.StructType | inspect.NoneType)]
        return " or ".join([*plain, f"{what} of kind " + " or ".join(f"`{kind.tag}`" for kind in kinds)])
    or_null = " or null" if isinstance(value_type, inspect.UnionType) and value_type.includes_none else ""
    return f"{what}{or_null}, see [{key}{'[]' if is_list else ''}](#{_anchor(key)})"


def _anchor(heading: str) -> str:
    """Return a heading's anchor: its text in lower case without punctuation."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")


def _default(field: inspect.Field) -> str:
    if field.required:
        return "required"
    if is_automatic(field.type):
        return f"`{AUTO}`"
    default: Any = field.default_factory() if field.default is NODEFAULT else field.default
    if isinstance(default, msgspec.Struct):
        tag = default.__struct_config__.tag
        return f"`{tag}`" if tag else "its defaults"
    return f"`{default if isinstance(default, str) and default else json.dumps(default)}`"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("``", "`")


def _documented(section: type) -> tuple[str, dict[str, str]]:
    """The meaning of a section, and that of each of its keys, from the section's docstring."""
    of_keys: dict[str, str] = {}
    meaning = ""
    for documented in reversed(section.__mro__):  # a base may have the keys that several kinds share
        if not issubclass(documented, Section):
            continue
        meaning, _, attributes = python_inspect.cleandoc(documented.__doc__ or "").partition("\nAttributes:\n")
        for entry in re.split(r"\n    (?=\S)", f"\n{attributes}")[1:]:
            names, _, text = entry.partition(": ")
            for name in names.split(","):
                of_keys[name.strip()] = _sentence(text)
    return _cell(_sentence(meaning)), of_keys


def _sentence(text: str) -> str:
    return linked(" ".join(text.split()), "reference")


def main(argv: Sequence[str]) -> None:
    """Write the reference to the file that ``argv`` names, by default ``docs/reference/recipe.md`` in the current folder."""
    parser = argparse.ArgumentParser(description="Write the reference of all recipe keys.")
    parser.add_argument("file", nargs="?", type=Path, default=Path("docs/reference/recipe.md"))
    parser.parse_args(argv).file.write_text(reference(), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
