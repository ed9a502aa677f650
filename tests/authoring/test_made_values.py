"""Calls that are made up fit: for every type of a Python signature, and for what schemas of servers say."""

import random
import re
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from tool_type_cases import DEFAULTS, LIMITED, SIMPLE, define, forms

from asyncrl.authoring.calls import made_call
from asyncrl.authoring.made_values import matching
from asyncrl.core.messages import ToolSpec

SIGNATURES = [f"x: {form.written}" for simple in SIMPLE for _, form in forms(simple)]
SIGNATURES += [*(f"x: {limited.written}" for limited in LIMITED), *DEFAULTS]


@pytest.mark.parametrize("signature", SIGNATURES)
def test_a_made_call_fits_every_type(signature: str):
    tool = define(signature).tools["take"]
    generator = random.Random(signature)
    for _ in range(30):
        tool.parameters.convert(made_call(tool.spec, generator).arguments)


@pytest.mark.parametrize(
    "part",
    [
        {"type": ["string", "null"]},
        {"allOf": [{"type": "integer"}, {"minimum": 7}]},
        {"oneOf": [{"type": "object", "required": ["a"], "properties": {"a": {"const": 3}}}, {"type": "boolean"}]},
        {"minLength": 70},
        {"type": "string", "maxLength": 0},
        {"type": "integer", "maximum": -5},
        {"type": "integer", "exclusiveMinimum": 3, "exclusiveMaximum": 5},
        {"type": "number", "minimum": 0.2, "maximum": 0.3},
        {"type": "number", "exclusiveMaximum": 0},
        {"type": "number", "multipleOf": 0.5, "minimum": 1},
        {"type": "array", "items": {"type": "integer"}, "minItems": 3, "maxItems": 3},
        {"type": "array", "items": {"enum": [1, 2, 3]}, "uniqueItems": True},
        {"type": "array", "prefixItems": [{"type": "integer"}], "items": {"type": "string"}, "minItems": 3},
        {"type": "object", "additionalProperties": {"type": "integer"}, "minProperties": 1},
        {"properties": {"a": {"type": "string"}}, "required": ["a"]},
        {"type": "string", "format": "uuid", "examples": ["00000000-0000-4000-8000-000000000000"]},
        {"type": "string", "pattern": "^(?=.*[0-9])[a-z0-9]{8}$", "examples": ["abcdefg1"]},
        {"$ref": "#/$defs/tree"},
        True,
    ],
)
def test_a_made_call_fits_a_schema(part: Any):
    tree = {"type": "object", "properties": {"next": {"$ref": "#/$defs/tree"}, "size": {"type": "integer"}}, "required": ["size"]}
    schema = {"type": "object", "properties": {"x": part}, "required": ["x"], "$defs": {"tree": tree}}
    validator = Draft202012Validator(schema, format_checker=Draft202012Validator.FORMAT_CHECKER)
    generator = random.Random(0)
    for _ in range(30):
        arguments = made_call(ToolSpec("take", "", schema), generator).arguments
        assert [error.message for error in validator.iter_errors(arguments)] == []


@pytest.mark.parametrize(
    "pattern",
    [
        r"^[A-Z]{2}-\d+$",
        r"^(red|green) \w+( \w+)*$",
        r"^[^a-z]{3}.?$",
        r"^\d{4}-\d{2}-\d{2}$",
        r"(a)\1",
        r"^[\w.+-]+@[\w-]+\.[a-z]{2,}$",
        r"^é[ü]$",
        r"\S\s\D",
        r"^(?:#?[0-9a-f]{6})$",
    ],
)
def test_a_text_is_made_that_matches(pattern: str):
    generator = random.Random(pattern)
    for _ in range(20):
        text = matching(pattern, generator)
        assert text is not None
        assert re.search(pattern, text)


def test_what_no_text_is_made_for_is_said():
    assert matching(r"^(?=.*[0-9])(?=.*[a-z])(?!.*00)[a-z0-9]{8}$", random.Random(0)) is None
