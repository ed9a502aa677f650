"""Writes docs/reference/tool-types.md from the signatures that the tests try: ``python tests/tool_types_page.py``."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tool_type_cases import DEFAULTS, LIMITED, RESULTS, SIMPLE, Type, define, defined_tool

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "tool-types.md"

_HEAD = """\
# Types of tools

<!-- Generated from the cases of a test by `python tests/tool_types_page.py`; edit these. -->

Which types the parameters of a tool may have, what the model is told of them and what the tool gets; and what the model reads of
what a tool returns. Constructor parameters, which are `environment.options` in a recipe, have the same types. An argument that
does not fit reaches no tool: the model is told what is wrong.
"""

_CLASSES = """\
In these tables `Tree` is a dataclass that holds itself, `Pair` a `NamedTuple`, `Model` a pydantic model, and

```python
class Colour(enum.Enum):
    RED = "red"
    GREEN = "green"


class Size(enum.IntEnum):
    SMALL, LARGE = 1, 2


@dataclass
class Point:
    x: int
    y: int = 0
```
"""

_TYPES = """\
## Types

Each also within others, such as `list[T]`, `dict[str, T]` and `T | None`. A `msgspec.Struct` or `TypedDict` is as a
dataclass, `frozenset` as `set`, a `NewType` as what it names; `list` and `dict` alone hold anything. `datetime.time` and
`uuid.UUID` are texts for the model. Little is converted: `"3"` and `true` are no integers, `1` is no boolean, `"RED"` no
`Colour`; `null` fits only `None`.
"""

_LIMITS = """\
## Descriptions and limits

In `Annotated`, beside the type: a text, `msgspec.Meta`, `pydantic.Field` (also as `x: int = pydantic.Field(...)`), what
`annotated_types` has, or `typing_extensions.Doc`. Fields of classes are described by `msgspec.Meta`.
"""

_DEFAULTS = """\
## Defaults

A parameter with a default may be left out. With `= None` it may also be null, whatever its type. Of mutable defaults only
empty ones are taken, such as `[]`, and each call gets its own.
"""

_REFUSED = """\
## Refused

When the class is defined, a `TypeError` names class, tool and parameter of a signature without types or with parameters that
cannot be passed by name (`*x`, `x, /`), and of types that JSON cannot carry: pydantic models, `np.ndarray`, `complex`,
`object`, `Callable`, `deque`, `Iterator`, unions that JSON cannot tell apart (`list[int] | set[int]`).
"""

_RESULTS = """\
## Results

Text is shown as it is, everything else as JSON; of a generator, also of an `async` one, the list of what it yields; of a row of
`sqlite3.Row` a dictionary, of a `NamedTuple` a list. Bytes, objects without a form in JSON, and dictionaries two of whose keys
are one in JSON (`1` and `"1"`, a member of an `Enum` and its value), are errors of the tool.
"""


_SHOWN_TYPES = (
    "str",
    "int",
    "float",
    "bool",
    "list[int]",
    "set[str]",
    "tuple[int, str]",
    "dict[str, int]",
    "dict[int, str]",
    'Literal["a", "b"]',
    "Colour",
    "Size",
    "datetime.date",
    "datetime.datetime",
    "datetime.timedelta",
    "decimal.Decimal",
    "bytes",
    "Point",
    "Pair",
    "Tree",
    "int | str",
)
_SHOWN_LIMITS = (
    'Annotated[str, "the word"]',
    'Annotated[int, pydantic.Field(ge=1, le=5, description="stars")]',
    "Annotated[int | None, pydantic.Field(gt=0)]",
    "Annotated[float, annotated_types.Interval(gt=0, lt=1)]",
    "Annotated[list[str], annotated_types.Len(1, 2)]",
)
_SHOWN_DEFAULTS = (
    "x: int = 3",
    "x: int = None",
    "x: list[int] = []",
    "x: int = pydantic.Field(2, ge=1)",
)
_SHOWN_RESULTS = (
    "'tree'",
    "True",
    "None",
    "(1, 2)",
    "{1}",
    "{1: 'a', Colour.RED: 'b'}",
    "['Straße']",
    "Point(1)",
    "Model(x=1, when='2026-08-01')",
    "datetime.date(2026, 8, 1)",
    "datetime.timedelta(hours=2)",
    "decimal.Decimal('1.10')",
    "np.float64(1.5)",
    "np.array([np.nan, -np.inf])",
    "np.array([(1, 'a')], [('n', int), ('word', 'U1')])",
    "pd.Series([3, 2], index=['red', 'blue'])",
    "(letter for letter in 'ab')",
)
"""Of what is tested, what shows something of its own."""


def types_page() -> str:
    """The page as Markdown."""
    heads = ("type", "the model is told", "fits", "the tool gets")
    types = {case.written: _type_row(case) for case in (*SIMPLE, *LIMITED) if case.written in _SHOWN_TYPES + _SHOWN_LIMITS}
    parts = [
        _HEAD,
        _CLASSES,
        _TYPES,
        _table(heads, (types[written] for written in _SHOWN_TYPES)),
        _LIMITS,
        _table(heads, (types[written] for written in _SHOWN_LIMITS)),
        _DEFAULTS,
        _table(("parameter", "the model is told", "left out, the tool gets"), map(_default_row, _SHOWN_DEFAULTS)),
        _REFUSED,
        _RESULTS,
        _table(("returned", "the model reads"), ((_code(each), _code(RESULTS[each])) for each in _SHOWN_RESULTS)),
    ]
    return "\n".join(parts)


def _type_row(case: Type) -> tuple[str, ...]:
    parameters = defined_tool(case.written).spec.parameters
    given, got = "<br>".join(map(_code, case.good)), "<br>".join(map(_code, case.good.values()))
    return _code(case.written), _schema(parameters), given, got


def _default_row(signature: str) -> tuple[str, ...]:
    return _code(signature), _schema(define(signature).tools["take"].spec.parameters), _code(DEFAULTS[signature])


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
