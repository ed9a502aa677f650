"""Signatures of tools, and what comes of each: the arguments that fit and what the tool gets, and those that are refused.

The test of tools' types calls every one of them, and ``docs/reference/tool-types.md`` is written from them.
"""

import datetime
import decimal
import enum
import pathlib
import sqlite3
import uuid
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, NamedTuple, NewType, NotRequired, Optional, TypedDict, Union

import annotated_types
import attrs
import msgspec
import numpy as np
import pandas as pd
import pydantic

from asyncrl.envs import ToolEnvironment, tool
from asyncrl.envs.tools import Tool


class Colour(enum.Enum):
    RED = "red"
    GREEN = "green"


class Size(enum.IntEnum):
    SMALL = 1
    LARGE = 2


class Unit(enum.StrEnum):
    METRE = "m"
    MILE = "mi"


@dataclass
class Point:
    x: int
    y: int = 0


@dataclass(frozen=True)
class Span:
    first: int
    last: int = 9


class Page(msgspec.Struct):
    number: int
    size: int = 10


class Arguments(msgspec.Struct):
    """A class of the author's with the name of one of ours."""

    word: str


class Filter(TypedDict):
    word: str
    year: NotRequired[int]


class Pair(NamedTuple):
    left: int
    right: int


@dataclass
class Tree:
    name: str
    children: "list[Tree]" = field(default_factory=list)


@attrs.define
class Leaf:
    colours: dict[Any, str]


@dataclass
class Described:
    x: Annotated[int, "the column"]


class Model(pydantic.BaseModel):
    x: int
    when: datetime.date


Celsius = NewType("Celsius", float)

_MODULES = (annotated_types, datetime, decimal, enum, msgspec, pathlib, pydantic, uuid)
_TYPES = (Annotated, Any, Callable, Iterator, Literal, Optional, Union, deque)


def row(query: str) -> sqlite3.Row:
    """The only row that a query of a database gives."""
    with closing(sqlite3.connect(":memory:")) as database:
        database.row_factory = sqlite3.Row
        found: sqlite3.Row = database.execute(query).fetchone()
        return found


_CLASSES = (
    Colour,
    Size,
    Unit,
    Point,
    Span,
    Page,
    Arguments,
    Filter,
    Pair,
    Tree,
    Leaf,
    Described,
    Model,
    Celsius,
    ToolEnvironment,
    tool,
    row,
)
NAMESPACE: dict[str, Any] = {each.__name__: each for each in (*_MODULES, *_CLASSES)} | {"np": np, "pd": pd}
"""What signatures may name."""
NAMESPACE |= {name: each for name, each in globals().items() if any(each is one for one in _TYPES)}


class Type(msgspec.Struct, frozen=True):
    """A type of parameters.

    Attributes:
        written: as it stands in a signature.
        good: arguments as JSON, and what the tool gets of each, as Python writes it.
        bad: arguments as JSON that are refused; null is, if it is not among the good ones.
        wider: good arguments that the type's JSON schema does not name.
    """

    written: str
    good: dict[str, str]
    bad: tuple[str, ...] = ()
    wider: tuple[str, ...] = ()


SIMPLE = (
    Type("str", {'"tree"': "'tree'", '""': "''", '"3"': "'3'"}, ("3", "true", '["a"]')),
    Type("int", {"3": "3", "-1": "-1", "3.0": "3", "1e3": "1000"}, ("3.5", '"3"', "true")),
    Type("float", {"1.5": "1.5", "2": "2.0"}, ('"1.5"', "false")),
    Type("bool", {"true": "True", "false": "False"}, ("1", '"true"')),
    Type("list", {"[]": "[]", '[1, "a"]': "[1, 'a']"}, ('"a"', "{}")),
    Type("dict", {"{}": "{}", '{"a": 1}': "{'a': 1}"}, ('"a"', "[]")),
    Type("list[int]", {"[1, 2]": "[1, 2]", "[1.0]": "[1]"}, ('["1"]', "1")),
    Type("list[list[str]]", {'[["a"], []]': "[['a'], []]"}, ('["a"]',)),
    Type("set[str]", {'["a"]': "{'a'}", '["a", "a"]': "{'a'}"}, ("[1]",), wider=('["a", "a"]',)),
    Type("frozenset[int]", {"[1]": "frozenset({1})"}, ('["a"]',)),
    Type("tuple[int, str]", {'[1, "a"]': "(1, 'a')"}, ("[1]", '["a", 1]', '[1, "a", 2]')),
    Type("tuple[int, ...]", {"[]": "()", "[1, 2]": "(1, 2)"}, ('["a"]',)),
    Type("dict[str, int]", {'{"a": 1, "b": 2.0}': "{'a': 1, 'b': 2}"}, ('{"a": "1"}',)),
    Type("dict[int, str]", {'{"1": "a", "-2": "b"}': "{1: 'a', -2: 'b'}"}, ('{"a": "a"}', '{"1.5": "a"}')),
    Type("dict[Colour, int]", {'{"red": 1}': "{<Colour.RED: 'red'>: 1}"}, ('{"blue": 1}',)),
    Type('Literal["a", "b"]', {'"a"': "'a'"}, ('"c"', "1")),
    Type("Literal[1, 2]", {"1": "1", "2.0": "2"}, ("3", '"1"')),
    Type("Colour", {'"red"': "<Colour.RED: 'red'>"}, ('"RED"', '"blue"')),
    Type("Size", {"1": "<Size.SMALL: 1>", "2.0": "<Size.LARGE: 2>"}, ("3", '"SMALL"')),
    Type("Unit", {'"mi"': "<Unit.MILE: 'mi'>"}, ('"MILE"',)),
    Type("datetime.date", {'"2026-08-01"': "datetime.date(2026, 8, 1)"}, ('"1 August"', "20260801")),
    Type(
        "datetime.datetime",
        {'"2026-08-01T12:00:00Z"': "datetime.datetime(2026, 8, 1, 12, 0, tzinfo=datetime.timezone.utc)"},
        ('"noon"',),
    ),
    Type("datetime.time", {'"12:30:00"': "datetime.time(12, 30)"}, ('"noon"',)),
    Type("datetime.timedelta", {'"P1DT2H"': "datetime.timedelta(days=1, seconds=7200)"}, ('"a day"',)),
    Type(
        "uuid.UUID",
        {'"12345678-1234-5678-1234-567812345678"': "UUID('12345678-1234-5678-1234-567812345678')"},
        ('"1234"',),
    ),
    Type("decimal.Decimal", {'"1.10"': "Decimal('1.10')", "1.5": "Decimal('1.5')"}, ('"x"',), wider=("1.5",)),
    Type("bytes", {'"YWI="': "b'ab'"}, ('"?"', "1")),
    Type("Point", {'{"x": 1}': "Point(x=1, y=0)", '{"x": 1.0, "y": 2}': "Point(x=1, y=2)"}, ('{"y": 1}', "[1]")),
    Type("Page", {'{"number": 2}': "Page(number=2, size=10)"}, ('{"number": "2"}',)),
    Type("Arguments", {'{"word": "tree"}': "Arguments(word='tree')"}, ("{}",)),
    Type("Filter", {'{"word": "tree"}': "{'word': 'tree'}", '{"word": "a", "year": 1}': "{'word': 'a', 'year': 1}"}, ("{}",)),
    Type("Pair", {"[1, 2]": "Pair(left=1, right=2)"}, ("[1]", '{"left": 1, "right": 2}')),
    Type(
        "Tree", {'{"name": "a", "children": [{"name": "b"}]}': "Tree(name='a', children=[Tree(name='b', children=[])])"}, ("{}",)
    ),
    Type("int | str", {"1": "1", '"a"': "'a'"}, ("1.5", "[]")),
    Type("list[Point]", {'[{"x": 1}]': "[Point(x=1, y=0)]"}, ('[{"z": 1}]',)),
    Type("Celsius", {"20.5": "20.5"}, ('"warm"',)),
)
"""Types that stand alone, and within others: see :func:`forms`."""

LIMITED = (
    Type('Annotated[str, "the word"]', {'"tree"': "'tree'"}, ("1",)),
    Type('list[Annotated[str, "a word"]]', {'["a"]': "['a']"}, ("[1]",)),
    Type('Annotated[int, msgspec.Meta(ge=1, description="a page")]', {"1": "1"}, ("0",)),
    Type('Annotated[str, msgspec.Meta(pattern="^[a-z]+$")]', {'"abc"': "'abc'"}, ('"A"',)),
    Type("Annotated[list[int], msgspec.Meta(max_length=2)]", {"[1]": "[1]"}, ("[1, 2, 3]",)),
    Type('Annotated[int, pydantic.Field(ge=1, le=5, description="stars")]', {"5": "5", "5.0": "5"}, ("6", "0")),
    Type('Annotated[str, pydantic.Field(min_length=2, pattern="^a")]', {'"ab"': "'ab'"}, ('"a"', '"ba"')),
    Type("Annotated[int | None, pydantic.Field(gt=0)]", {"1": "1", "null": "None"}, ("0",)),
    Type("Annotated[float, annotated_types.Interval(gt=0, lt=1)]", {"0.5": "0.5"}, ("0", "1")),
    Type("Annotated[int, annotated_types.MultipleOf(5)]", {"10": "10"}, ("3",)),
    Type("Annotated[list[str], annotated_types.Len(1, 2)]", {'["a"]': "['a']"}, ("[]",)),
    Type("Any", {"1": "1", '"a"': "'a'", "null": "None"}),
    Type("None", {"null": "None"}, ("0",)),
    Type("Optional[int]", {"1": "1", "null": "None"}, ('"1"',)),
    Type("Union[int, list[int]]", {"1": "1", "[1]": "[1]"}, ('"1"',)),
)
"""Types that are described or limited, and those that take null."""

DEFAULTS = {
    "x: int = 3": "3",
    "x: int = None": "None",
    "x: int = -1": "-1",
    "x: float = 1": "1.0",
    "x: float = float('inf')": "inf",
    "x: str = 'a'": "'a'",
    "x: bool = False": "False",
    "x: list[int] = []": "[]",
    "x: dict[str, int] = {}": "{}",
    "x: list[int] = None": "None",
    "x: tuple[int, ...] = (1, 2)": "(1, 2)",
    "x: frozenset[int] = frozenset({1})": "frozenset({1})",
    "x: Colour = Colour.RED": "<Colour.RED: 'red'>",
    "x: Colour = 'red'": "<Colour.RED: 'red'>",
    "x: Span = Span(1)": "Span(first=1, last=9)",
    "x: Point = None": "None",
    "x: datetime.date = datetime.date(2026, 8, 1)": "datetime.date(2026, 8, 1)",
    "x: Any = None": "None",
    "x: Annotated[int, 'a page'] = None": "None",
    "x: int = pydantic.Field(2, ge=1)": "2",
    "x: int = pydantic.Field(None, ge=1)": "None",
}
"""Parameters with a default, and what the tool gets where the model leaves them out."""

REFUSED = {
    "x": "has no type; write `x: str`",
    "*x: str": "cannot be passed by name; use ordinary parameters",
    "**x: str": "cannot be passed by name; use ordinary parameters",
    "x: str, /": "cannot be passed by name; use ordinary parameters",
    "x: 'Missing'": "cannot be resolved",
    "x: 'a b'": "what its signature has for a type is none",
    "x: complex": "JSON cannot carry a type in its signature",
    "x: object": "JSON cannot carry a type in its signature",
    "x: Callable[[int], int]": "JSON cannot carry a type in its signature",
    "x: np.ndarray": "JSON cannot carry a type in its signature",
    "x: Model": "JSON cannot carry a type in its signature",
    "x: deque[int]": "JSON cannot carry a type in its signature",
    "x: Iterator[int]": "JSON cannot carry a type in its signature",
    "x: list[int] | set[int]": "JSON cannot carry a type in its signature",
    "x: Annotated[str, msgspec.Meta(ge=1)]": "JSON cannot carry a type in its signature",
    "x: list[int] = [1]": "parameter 'x': its default [1] would be shared by all calls",
    "x: dict[str, int] = {'a': 1}": "parameter 'x': its default {'a': 1} would be shared by all calls",
    "x: set[int] = {1}": "parameter 'x': its default {1} would be shared by all calls",
    "x: Point = Point(1)": "parameter 'x': its default Point(x=1, y=0) would be shared by all calls",
    "x: Page = Page(1)": "parameter 'x': its default Page(number=1, size=10) would be shared by all calls",
    "x: int = 'a'": "parameter 'x': its default 'a' does not fit its type",
    "x: Literal['a'] = 'b'": "parameter 'x': its default 'b' does not fit its type",
    "x: Annotated[int, msgspec.Meta(ge=1)] = 0": "parameter 'x': its default 0 does not fit its type",
    "x: Any = object": "cannot be shown to the model",
    "x: Annotated[int, 3]": "3 in its Annotated[...] is not understood",
    "x: Annotated[int, pydantic.Field(alias='y')]": "alias of its pydantic.Field is not followed",
    "x: Annotated[list[int], pydantic.Field(default_factory=list)]": "default_factory of its pydantic.Field is not followed",
    "x: Described": "field 'x' of Described says 'the column', which is read of parameters only",
}
"""Signatures that are refused when the class is defined, and a part of why."""

RESULTS = {
    "'tree'": "tree",
    "Unit.MILE": "mi",
    "np.str_('tree')": "tree",
    "3": "3",
    "1.5": "1.5",
    "True": "true",
    "None": "null",
    "[1, 'a', None]": '[1,"a",null]',
    "(1, 2)": "[1,2]",
    "{1}": "[1]",
    "{'a': 1}": '{"a":1}',
    "{1: 'a', Colour.RED: 'b'}": '{"1":"a","red":"b"}',
    "'Straße'": "Straße",
    "['Straße']": '["Straße"]',
    "Point(1)": '{"x":1,"y":0}',
    "Page(1)": '{"number":1,"size":10}',
    "Model(x=1, when='2026-08-01')": '{"x":1,"when":"2026-08-01"}',
    "Pair(1, 2)": "[1,2]",
    "Colour.RED": '"red"',
    "datetime.date(2026, 8, 1)": '"2026-08-01"',
    "datetime.timedelta(hours=2)": '"PT7200S"',
    "uuid.UUID(int=1)": '"00000000-0000-0000-0000-000000000001"',
    "decimal.Decimal('1.10')": '"1.10"',
    "pathlib.PurePosixPath('/a/b')": '"/a/b"',
    "np.int64(3)": "3",
    "np.float64(1.5)": "1.5",
    "np.bool_(True)": "true",
    "np.array([[1, 2], [3, 4]])": "[[1,2],[3,4]]",
    "{'mean': np.float64(0.5)}": '{"mean":0.5}',
    "np.datetime64('2026-08-01')": '"2026-08-01"',
    "np.datetime64('2026-08-01T00:00:00.000000001')": '"2026-08-01T00:00:00.000000001"',
    "np.array(['NaT', '2026-08-01'], 'M8[ns]')": '["NaT","2026-08-01T00:00:00.000000000"]',
    "np.array([90], 'm8[ns]').astype('m8[ns]') * 10**9": '["PT90S"]',
    "np.timedelta64(1500, 'ns')": '"1500 nanoseconds"',
    "np.array([1500, 'NaT'], 'm8[ns]')": '["1500 nanoseconds","NaT"]',
    "np.array([(1, 'a')], [('n', int), ('word', 'U1')])": '[{"n":1,"word":"a"}]',
    "np.array([(1, 'a')], [('n', int), ('word', 'U1')])[0]": '{"n":1,"word":"a"}',
    "[row('select 1 as n, 2 as m')]": '[{"n":1,"m":2}]',
    "row('select 1 as n, 2 as n')": '[["n",1],["n",2]]',
    "float('inf')": "Infinity",
    "[float('nan')]": "[NaN]",
    "np.array([np.nan, -np.inf])": "[NaN,-Infinity]",
    "pd.Series([3, 2], index=['red', 'blue'])": '{"red":3,"blue":2}',
    "pd.Series([3, 2], index=[1, 0])": '{"1":3,"0":2}',
    "pd.Series(['a', 'b'])": '["a","b"]',
    "pd.Series([True, True, False]).value_counts()": '{"True":2,"False":1}',
    "pd.Series([1], index=pd.to_datetime(['2026-08-01']))": '{"2026-08-01 00:00:00":1}',
    "pd.DataFrame({'a': [1], 'b': [2]}).iloc[0]": '{"a":1,"b":2}',
    "pd.Series([1, 2], index=['a', 'a'])": '[["a",1],["a",2]]',
    "pd.concat([pd.Series([1]), pd.Series([2])])": "[[0,1],[0,2]]",
    "pd.DataFrame({'age': [30, 41]}, index=['Smith', 'Smith']).loc['Smith', 'age']": '[["Smith",30],["Smith",41]]',
    "pd.Index(['a'])": '["a"]',
    "range(3)": "[0,1,2]",
    "deque([1, 2])": "[1,2]",
    "{'a': 1}.items()": '[["a",1]]',
    "(letter for letter in 'ab')": '["a","b"]',
    "map(str, [1, 2])": '["1","2"]',
}
"""What a tool returns, and what the model reads."""

WRONG_RESULTS = {
    "b'ab'": "returned bytes, which are no text; decode them",
    "[bytearray(b'ab')]": "returned bytes, which are no text; decode them",
    "np.array([b'ab'])": "returned bytes, which are no text; decode them",
    "object()": "returned an object of class builtins.object, which has no text",
    "[1j]": "returned an object of class builtins.complex, which has no text",
    "int": "returned an object of class builtins.type, which has no text",
    "{1: 'a', '1': 'b'}": "returned a dictionary with the keys 1 and '1', which are one in JSON; rename one of them",
    "[{'a': {'1.5': 'a', np.float64(1.5): 'b'}}]": "which are one in JSON",
    "{datetime.date(2026, 8, 1): 'a', '2026-08-01': 'b'}": "which are one in JSON",
    "{datetime.datetime(2026, 8, 1): 'a', '2026-08-01T00:00:00': 'b'}": "which are one in JSON",
    "{decimal.Decimal('1.10'): 'a', '1.10': 'b'}": "which are one in JSON",
    "{Colour.RED: 'a', 'red': 'b'}": "returned a dictionary with the keys <Colour.RED: 'red'> and 'red', which are one in JSON",
    "{pathlib.PurePath('a'): 'a', 'a': 'b'}": "which are one in JSON",
    "iter([Point({Colour.RED: 'a', 'red': 'b'})])": "which are one in JSON",
    "Page(({Colour.RED: 'a', 'red': 'b'},))": "which are one in JSON",
    "Leaf({Colour.RED: 'a', 'red': 'b'})": "which are one in JSON",
    "deque([itself := [], itself.append(itself)])": "which JSON cannot carry",
    "{(1, 2): 3}": "Only dicts with str-like or number-like keys are supported",
}
"""What a tool may not return, and a part of what is told to the model, counted and shown to the author."""


def forms(simple: Type) -> Iterator[tuple[str, Type]]:
    """The signatures in which a type is tried: a name of the form, and the type in it."""
    yield "alone", simple
    yield "or None", Type(f"{simple.written} | None", simple.good | {"null": "None"}, simple.bad, simple.wider)
    yield "described", Type(f'Annotated[{simple.written}, "a text"]', simple.good, simple.bad, simple.wider)
    listed = {f"[{given}]": f"[{got}]" for given, got in simple.good.items()}
    yield "in a list", Type(f"list[{simple.written}]", listed, tuple(f"[{given}]" for given in simple.bad), _in(simple, "[{}]"))
    named = {f'{{"k": {given}}}': f"{{'k': {got}}}" for given, got in simple.good.items()}
    bad = tuple(f'{{"k": {given}}}' for given in simple.bad)
    yield "in a dictionary", Type(f"dict[str, {simple.written}]", named, bad, _in(simple, '{{"k": {}}}'))


def _in(simple: Type, around: str) -> tuple[str, ...]:
    return tuple(around.format(given) for given in simple.wider)


def signatures() -> list[str]:
    """Every signature that is tried, of parameters: no results."""
    types = [*(form.written for simple in SIMPLE for _, form in forms(simple)), *(limited.written for limited in LIMITED)]
    return [*(f"x: {each}" for each in types), *DEFAULTS, *REFUSED]


def define(signature: str, body: str = "repr(x)") -> type[ToolEnvironment]:
    """Define an environment with a tool ``take`` of a signature, as its author would write it."""
    source = f"""
class Case(ToolEnvironment):
    @tool
    async def take(self, {signature}):
        \"\"\"Take it.\"\"\"
        return {body}

    def reward(self, task, answer):
        return 0.0
"""
    names = dict(NAMESPACE)
    exec(source, names)
    defined: type[ToolEnvironment] = names["Case"]
    return defined


def defined_tool(written: str) -> Tool:
    """The tool whose parameter ``x`` has a type."""
    return define(f"x: {written}").tools["take"]
