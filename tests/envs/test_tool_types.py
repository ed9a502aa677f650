"""Types of tools: each signature of the table is defined and called, and held against the JSON schema that the model is given."""

import json
import re
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from tool_type_cases import DEFAULTS, LIMITED, REFUSED, RESULTS, SIMPLE, WRONG_RESULTS, Type, define, forms, signatures
from tool_types_page import PAGE, types_page

from asyncrl.core.ids import TaskId
from asyncrl.core.messages import CallOutcome, ToolCall, ToolSpec
from asyncrl.core.task import Task
from asyncrl.envs import Action, StepResult, ToolEnvironment
from asyncrl.envs.signature import SchemaParameters

FORMS = [
    *(pytest.param(form, id=f"{simple.written}, {name}") for simple in SIMPLE for name, form in forms(simple)),
    *(pytest.param(limited, id=limited.written) for limited in LIMITED),
]


async def call(environment: type[ToolEnvironment], arguments: dict[str, Any]) -> StepResult:
    playing = environment()
    await playing.reset(Task(id=TaskId("t"), prompt="?"))
    return await playing.step(Action("", (ToolCall("take", arguments),)))


def told(result: StepResult) -> tuple[CallOutcome, str]:
    return result.calls[0].outcome, result.observation.messages[0].content


def test_the_table_is_long():
    assert len(set(signatures())) >= 150


@pytest.mark.parametrize("case", FORMS)
async def test_arguments_fit_a_type_or_are_refused_and_the_schema_says_the_same(case: Type):
    environment = define(f"x: {case.written}")
    schema = environment.tools["take"].spec.parameters
    Draft202012Validator.check_schema(schema)
    validator = Draft202012Validator(schema)
    for given, got in case.good.items():
        arguments = {"x": json.loads(given)}
        assert told(await call(environment, arguments)) == (CallOutcome.OK, got), given
        assert validator.is_valid(arguments) or given in case.wider, given
    for given in [*case.bad, *(["null"] if "null" not in case.good else [])]:
        arguments = {"x": json.loads(given)}
        outcome, text = told(await call(environment, arguments))
        assert outcome is CallOutcome.MALFORMED, given
        assert "; use take(x: " in text
        formatted = any(word in json.dumps(schema) for word in ('"format"', "contentEncoding"))
        assert formatted or not validator.is_valid(arguments), given
    assert (await call(environment, {})).calls[0].outcome is CallOutcome.MALFORMED


@pytest.mark.parametrize(("signature", "got"), DEFAULTS.items())
async def test_a_default_is_what_the_tool_gets_and_may_be_written(signature: str, got: str):
    environment = define(signature)
    assert told(await call(environment, {})) == (CallOutcome.OK, got)
    schema = environment.tools["take"].spec.parameters
    assert "x" not in schema["required"]
    if "default" in schema["properties"]["x"]:
        shown = schema["properties"]["x"]["default"]
        written = json.loads(json.dumps(shown, allow_nan=False))
        assert Draft202012Validator(schema).is_valid({"x": written})
        assert told(await call(environment, {"x": written})) == (CallOutcome.OK, got)


@pytest.mark.parametrize(("signature", "why"), REFUSED.items())
def test_a_signature_that_cannot_be_offered_is_refused_with_class_tool_and_parameter(signature: str, why: str):
    with pytest.raises(TypeError, match=f"^Case: tool take: .*{re.escape(why)}"):
        define(signature)


@pytest.mark.parametrize(("returned", "text"), RESULTS.items())
async def test_what_a_tool_returns_is_text_or_json(returned: str, text: str):
    assert told(await call(define("x: int", returned), {"x": 1})) == (CallOutcome.OK, text)


@pytest.mark.parametrize(("returned", "why"), WRONG_RESULTS.items())
async def test_what_has_no_text_is_an_error_of_the_tool(returned: str, why: str):
    result = await call(define("x: int", returned), {"x": 1})
    outcome, text = told(result)
    assert outcome is CallOutcome.ERROR
    assert why in text
    (error,) = result.errors
    assert (error.kind, error.method) == ("WrongResult", "take")
    assert not re.search("0x[0-9a-f]{6}", text)  # which would differ from episode to episode


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-1e999", "[[1, NaN]]"])
async def test_numbers_that_json_lacks_are_refused_as_arguments(number: str):
    outcome, text = told(await call(define("x: Any"), {"x": json.loads(number)}))
    assert outcome is CallOutcome.MALFORMED
    assert "is no number that JSON has; use take(x: Any)" in text


def test_the_page_is_that_of_the_signatures():
    assert PAGE.read_text() == types_page(), "python tests/tool_types_page.py"


@pytest.mark.parametrize(
    ("signature", "usage"),
    [
        ("x: Colour", "take(x: 'red' | 'green')"),
        ("x: Colour = Colour.RED", "take(x: 'red' | 'green' = 'red')"),
        ("x: Point", "take(x: {x: int, y?: int})"),
        ("x: Tree", "take(x: {name: str, children?: list[{name: str, children?: list[Tree]}]})"),
        ("x: dict[int, list[str]] = None", "take(x: dict[int, list[str]] | None = None)"),
        ("x: tuple[int, datetime.date]", "take(x: [int, date])"),
        ("x: Annotated[str, 'a word']", "take(x: str)"),
    ],
)
def test_a_wrong_call_is_told_values_and_fields(signature: str, usage: str):
    assert define(signature).tools["take"].parameters.usage == usage


def test_an_enum_of_many_values_is_cut():
    named = define("x: enum.Enum('Big', [f'v{n}' for n in range(200)])")
    assert named.tools["take"].parameters.usage.endswith("| 20 | ... (200 values))")


@pytest.mark.parametrize(
    ("schema", "usage"),
    [
        ({"type": "string"}, "string"),
        ({"type": ["integer", "null"]}, "integer or null"),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}], "default": None}, "integer or null"),  # Optional[int] of pydantic
        ({"enum": ["asc", "desc"], "type": "string"}, '"asc" | "desc"'),
        ({"enum": ["asc", None, True]}, '"asc" | null | true'),  # as the model has to write them
        ({"anyOf": [{"enum": ["asc", "desc"]}, {"type": "null"}]}, '"asc" | "desc" or null'),
        ({"const": "rows"}, '"rows"'),
        ({"$ref": "#/$defs/Point"}, "Point"),
        ({"anyOf": [{"$ref": "#/$defs/Point"}, {"type": "null"}]}, "Point or null"),
        ({"anyOf": [{"anyOf": [{"anyOf": []}]}]}, "any"),
        ({"items": {"minimum": 0}}, "any"),
        (True, "any"),
    ],
)
def test_how_a_tool_of_others_is_called_is_read_from_its_schema(schema: object, usage: str):
    spec = ToolSpec("take", "", {"properties": {"x": schema}, "required": ["x"]})
    assert SchemaParameters(spec).usage == f"take(x: {usage})"
