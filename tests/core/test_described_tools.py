"""Tools as data sets describe them: every form becomes a JSON schema of type object, and what is no tool is named."""

import json
import re

import pytest

from asyncrl.core.described_tools import described_tools


def schema(**arguments):
    (spec,) = described_tools([{"name": "f", "description": "", "parameters": arguments}])
    return spec.parameters


@pytest.mark.parametrize(
    ("named", "type_", "required"),
    [
        ("str", {"type": "string"}, True),
        ("int, optional", {"type": "integer"}, False),
        ("Optional[float]", {"type": "number"}, False),
        ("List[int]", {"type": "array", "items": {"type": "integer"}}, True),
        ("list", {"type": "array"}, True),
        ("List[List[str]]", {"type": "array", "items": {"type": "array", "items": {"type": "string"}}}, True),
        ("Tuple[float, float]", {"type": "array"}, True),
        ("Dict[str, float]", {"type": "object"}, True),
        ("bool", {"type": "boolean"}, True),
        ("string", {"type": "string"}, True),
    ],
)
def test_a_type_of_python_becomes_that_of_a_schema(named, type_, required):
    assert schema(x={"type": named}) == {"type": "object", "properties": {"x": type_}, "required": ["x"] * required}


def test_a_type_without_a_counterpart_is_told_in_words_and_a_default_makes_optional():
    made = schema(f={"type": "Callable[[float], float]", "description": "To integrate."}, n={"type": "int", "default": 10})
    assert made["properties"]["f"] == {"description": "To integrate. (Callable[[float], float])"}
    assert made["required"] == ["f"]


@pytest.mark.parametrize(
    ("argument", "required"),
    [
        ({"type": "str", "required": True}, True),
        ({"type": "str", "required": False}, False),
        ({"type": "str, optional", "required": True}, True),
        ({"type": "str", "default": "a", "required": True}, True),
        ({"type": "str", "required": None}, True),
    ],
)
def test_an_argument_may_say_itself_whether_it_is_required(argument, required):
    made = schema(a=argument)
    assert made["required"] == ["a"] * required
    assert made["properties"]["a"] == {"type": "string"} | ({"default": "a"} if "default" in argument else {})


def test_a_schema_stays_with_names_of_its_types_made_json():
    own = {
        "type": "dict",
        "properties": {"a": {"type": "array", "items": {"type": "float"}}, "b": {"type": ["string", "null"]}},
        "required": ["a"],
    }
    assert schema(**own) == {
        "type": "object",
        "properties": {"a": {"type": "array", "items": {"type": "number"}}, "b": {"type": ["string", "null"]}},
        "required": ["a"],
    }
    assert schema() == {"type": "object", "properties": {}, "required": []}
    assert described_tools(None) == ()


def test_nulls_of_a_schema_say_nothing():
    own = {"type": "object", "properties": {"a": {"type": None, "items": None, "default": None}, "b": True}, "required": None}
    expected = {"type": "object", "properties": {"a": {"default": None}, "b": True}}
    assert schema(**own) == expected
    told = {"type": "string", "enum": None, "description": None, "anyOf": None, "const": None}
    assert schema(type="object", properties={"a": told})["properties"] == {"a": {"type": "string", "const": None}}
    assert schema(type="object", properties=None, required=None) == {"type": "object", "properties": {}}
    assert schema(a={"type": None}) == {"type": "object", "properties": {"a": {}}, "required": ["a"]}


def test_an_argument_that_is_null_is_one_of_other_tools_of_a_table():
    own = {"a": {"type": "str"}, "b": None}
    expected = {"a": {"type": "string"}}
    assert schema(**own) == {"type": "object", "properties": expected, "required": ["a"]}
    assert schema(type="object", properties=own)["properties"] == expected
    within = schema(type="object", properties={"c": {"type": "object", "properties": own}})
    assert within["properties"]["c"]["properties"] == expected
    assert schema(type="object", properties={"b": None})["properties"] == {}


def test_types_within_choices_are_those_of_schemas():
    made = schema(type="object", properties={"a": {"anyOf": [{"type": "float"}, {"type": "null"}, True]}})
    assert made["properties"] == {"a": {"anyOf": [{"type": "number"}, {"type": "null"}, True]}}


def test_a_tool_and_its_parameters_may_be_json_text():
    parameters = {"type": "object", "properties": {"a": {"type": "str"}}}
    plain = {"name": "f", "description": "d", "parameters": parameters}
    texts = json.dumps(plain), {**plain, "parameters": json.dumps(parameters)}, {"function": json.dumps(plain)}
    assert [described_tools([text]) for text in texts] == [described_tools([plain])] * 3
    with pytest.raises(ValueError, match=r"the tool 'f\(a\)'; write it as"):
        described_tools(["f(a)"])


def typed(**keywords):
    return {"name": "f", "parameters": {"type": "object", "properties": {"a": keywords}}}


@pytest.mark.parametrize(
    ("tools", "told"),
    [
        ("[]", "give a list of descriptions"),
        ([{"description": "?"}], "write it as {function: {name: NAME"),
        ([{"name": "f", "parameters": ["x"]}], "tool 'f' with description '' and parameters"),
        ([{"name": "f", "parameters": {"x": "int"}}], "tool 'f' with parameter 'x': 'int'; give a JSON schema"),
        ([typed(type=5)], "tool 'f' with type 5 in its schema; write it as JSON schemas have it"),
        ([typed(type=["string", 5])], "tool 'f' with type ['string', 5] in its schema"),
        ([typed(items={"type": {}})], "tool 'f' with type {} in its schema"),
        ([typed(properties={"x": 5})], "tool 'f' with properties {'x': 5} in its schema"),
        ([typed(properties=["x"])], "tool 'f' with properties ['x'] in its schema"),
        ([typed(properties=True)], "tool 'f' with properties True in its schema"),
        ([typed(required="x")], "tool 'f' with required 'x' in its schema"),
        ([typed(required=True)], "tool 'f' with required True in its schema"),
        ([{"name": "f", "parameters": {"type": "object", "required": [1]}}], "tool 'f' with required [1] in its schema"),
        ([{"name": "f", "parameters": {"type": "object", "properties": 5}}], "tool 'f' with properties 5 in its schema"),
        ([{"name": "f"}, {"function": {"name": "f"}}], "two tools named 'f'"),
    ],
)
def test_what_is_no_tool_is_named(tools, told):
    with pytest.raises(ValueError, match=re.escape(told)):
        described_tools(tools)


@pytest.mark.parametrize("key", ["parameters", "input_schema", "inputSchema"])
def test_the_schema_of_a_tool_is_found_under_the_names_that_protocols_give_it(key):
    own = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    (spec,) = described_tools([{"name": "weather", "description": "Tells it.", key: own}])
    assert spec.parameters == own


@pytest.mark.parametrize("key", ["arguments", "args", "properties", "schema"])
def test_a_schema_under_another_name_is_refused_since_it_would_not_reach_the_model(key):
    with pytest.raises(ValueError, match=f"tool 'weather' with '{key}', which would not reach the model; name it parameters"):
        described_tools([{"name": "weather", key: {"city": {"type": "str"}}}])
