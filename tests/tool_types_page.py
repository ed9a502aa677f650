"""Writes docs/reference/tool-types.md from the signatures that the tests try: ``python tests/tool_types_page.py``."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tool_type_cases import (
    DEFAULTS,
    LIMITED,
    REFUSED,
    RESULTS,
    SIMPLE,
    WRONG_RESULTS,
    Type,
    define,
    defined_tool,
    signatures,
)

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "tool-types.md"

_HEAD = """\
# Types of tools

<!-- Generated from the cases of a test by `python tests/tool_types_page.py`; edit these. -->

What the model is told of a tool's parameters, what fits them, what the tool gets, and what the model reads of what a tool
returns. Every line is tested ({signatures} signatures, {results} results), the types of the first table also as `T | None`,
`Annotated[T, "a text"]`, `list[T]` and `dict[str, T]`. Constructor parameters, which are `environment.options` in a recipe, have
the same types.

An argument that does not fit reaches no tool: the model is told what is wrong. A signature that cannot be offered is refused when
the class is defined, by a `TypeError` that names class, tool and parameter.
"""

_CLASSES = """\
The classes of these tables:

```python
class Colour(enum.Enum):
    RED = "red"
    GREEN = "green"


class Size(enum.IntEnum):
    SMALL, LARGE = 1, 2


class Unit(enum.StrEnum):
    METRE, MILE = "m", "mi"


@dataclass
class Point:
    x: int
    y: int = 0


class Filter(TypedDict):
    word: str
    year: NotRequired[int]


class Page(msgspec.Struct):
    number: int
    size: int = 10
```

`Pair` is a `NamedTuple`, `Tree` a dataclass that holds itself, `Span` a frozen dataclass, `Model` a pydantic model, `Described`
a dataclass whose field is an `Annotated[int, "the column"]`.
"""

_LIMITS = """\
## Descriptions and limits

In `Annotated`, beside the type: a text, `msgspec.Meta`, `pydantic.Field` (also as `x: int = pydantic.Field(...)`), what
`annotated_types` has, or `typing_extensions.Doc`. Fields of classes are described by `msgspec.Meta`. Anything else is refused.
"""

_DEFAULTS = """\
## Defaults

A parameter with a default may be left out. With `= None` it may also be null, whatever its type.
"""

_RESULTS = """\
## Results

Text is shown as it is, everything else as JSON; of a generator, also of an `async` one, the list of what it yields.
"""

_WRONG = """\
Errors of the tool, which the model is told, and you with the tool's line:
"""


_SHOWN_DEFAULTS = (
    "x: int = 3",
    "x: int = None",
    "x: float = float('inf')",
    "x: list[int] = []",
    "x: Colour = 'red'",
    "x: Span = Span(1)",
    "x: Annotated[int, 'a page'] = None",
    "x: int = pydantic.Field(2, ge=1)",
)
"""Of the defaults that are tested, those that show something of their own."""


def types_page() -> str:
    """The page as Markdown."""
    results = len(RESULTS) + len(WRONG_RESULTS)
    heads = ("type", "the model is told", "fits", "the tool gets", "does not fit")
    parts = [
        _HEAD.format(signatures=len(signatures()), results=results),
        _CLASSES,
        "## Types\n",
        _table(heads, map(_type_row, SIMPLE)),
        _LIMITS,
        _table(heads, map(_type_row, LIMITED)),
        _DEFAULTS,
        _table(("parameter", "the model is told", "left out, the tool gets"), map(_default_row, _SHOWN_DEFAULTS)),
        "## Refused when the class is defined\n",
        _table(("why", "parameters"), _refused_rows()),
        _RESULTS,
        _table(("returned", "the model reads"), ((_code(each), _code(text)) for each, text in RESULTS.items())),
        _WRONG,
        _table(("returned", "error"), ((_code(each), _code(why)) for each, why in WRONG_RESULTS.items())),
    ]
    return "\n".join(parts)


def _type_row(case: Type) -> tuple[str, ...]:
    parameters = defined_tool(case.written).spec.parameters
    given, got = "<br>".join(map(_code, case.good)), "<br>".join(map(_code, case.good.values()))
    return _code(case.written), _schema(parameters), given, got, " ".join(map(_code, case.bad))


def _default_row(signature: str) -> tuple[str, ...]:
    return _code(signature), _schema(define(signature).tools["take"].spec.parameters), _code(DEFAULTS[signature])


def _refused_rows() -> Iterable[tuple[str, ...]]:
    """A row for each reason, with all parameters that are refused for it."""
    parameters: dict[str, list[str]] = {}
    for parameter, why in REFUSED.items():
        parameters.setdefault(why, []).append(_code(parameter))
    return ((_code(why), "<br>".join(refused)) for why, refused in parameters.items())


def _schema(parameters: Mapping[str, Any]) -> str:
    """The schema of the only parameter, with classes where they are named."""
    schema, classes = parameters["properties"]["x"], parameters.get("$defs", {})
    text = json.dumps(schema, ensure_ascii=False)
    for name, described in classes.items():
        reference = json.dumps({"$ref": f"#/$defs/{name}"})[1:-1]
        shown = json.dumps({key: value for key, value in described.items() if key != "title"}, ensure_ascii=False)[1:-1]
        if reference not in shown:
            text = text.replace(reference, shown)
    return _code(text)


def _table(heads: Iterable[str], rows: Iterable[tuple[str, ...]]) -> str:
    heads = list(heads)
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def _code(text: str) -> str:
    escaped = text.replace("|", "\\|")
    return f"`` {escaped} ``" if "`" in text else f"`{escaped}`"


if __name__ == "__main__":
    PAGE.write_text(types_page(), encoding="utf-8")
