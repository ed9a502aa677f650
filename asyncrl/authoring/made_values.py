"""Makes up values that fit a JSON schema, for calls that no model has made.

It knows what schemas of Python signatures and of servers usually say. What it makes is a try: whether a call fits, the tool says.
"""

import base64
import datetime
import random
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from asyncrl.authoring.pattern_text import matching

Schema = Mapping[str, Any]
_DEEPEST = 4
_WORDS = ("a", "apple", "3*4", "2", "SELECT 1", "print(1)", "notes.txt", "Où est-ce ?")
_LONGEST = 100_000
_DAY = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
_STRINGS = ("pattern", "format", "minLength", "maxLength", "contentEncoding")
_NUMBERS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
_ARRAYS = ("items", "prefixItems", "minItems", "maxItems", "uniqueItems")
_OBJECTS = ("properties", "additionalProperties", "required", "propertyNames", "minProperties")


class ValueMaker:
    """Makes values for the schema of one tool.

    Args:
        definitions: the schemas that others refer to, by name.
    """

    def __init__(self, definitions: Mapping[str, Schema], generator: random.Random) -> None:
        self._definitions, self._generator = definitions, generator

    def value(self, schema: Schema | bool, depth: int = 0) -> Any:
        """Make a value. An author's examples come first."""
        if isinstance(schema, bool):
            return self._generator.choice(_WORDS)
        schema = self._whole(schema, depth)
        for choices in ("examples", "enum"):
            if schema.get(choices):
                return self._generator.choice(schema[choices])
        if "const" in schema:
            return schema["const"]
        for several in ("anyOf", "oneOf"):
            if several in schema:
                return self.value(self._generator.choice(schema[several]), depth)
        match self._type(schema):
            case "integer":
                return int(self._number(schema, whole=True))
            case "number":
                return self._number(schema, whole=False)
            case "boolean":
                return self._generator.random() < 0.5
            case "null":
                return None
            case "array":
                return self._array(schema, depth)
            case "object":
                return self.object(schema, depth)
            case _:
                return self._string(schema)

    def object(self, schema: Schema, depth: int = 0) -> dict[str, Any]:
        """Make an object: what it requires, and some of the rest."""
        properties, required = schema.get("properties", {}), set(schema.get("required", ()))
        made = {
            name: self.value(part, depth + 1)
            for name, part in properties.items()
            if name in required or (depth < _DEEPEST and self._generator.random() < 0.5)
        }
        others, names = schema.get("additionalProperties"), schema.get("propertyNames", {})
        if isinstance(others, Mapping):
            for _ in range(max(int(schema.get("minProperties", 0)) - len(made), int(depth < _DEEPEST))):
                made[str(self._string(names) if "enum" not in names else self.value(names))] = self.value(others, depth + 1)
        return made

    def _whole(self, schema: Schema, depth: int) -> Schema:
        """Follow references, and put together what `allOf` says in parts."""
        for _ in range(_DEEPEST):
            if "$ref" not in schema:
                break
            rest = {key: value for key, value in schema.items() if key != "$ref"}
            schema = {**self._definitions.get(schema["$ref"].rpartition("/")[2], {}), **rest}
        if "allOf" not in schema or depth > _DEEPEST:
            return schema
        rest = {key: value for key, value in schema.items() if key != "allOf"}
        for part in schema["allOf"]:
            rest = {**self._whole(part, depth + 1), **rest} if isinstance(part, Mapping) else rest
        return rest

    def _type(self, schema: Schema) -> str:
        named = schema.get("type")
        if isinstance(named, list):
            return str(self._generator.choice(named))
        if isinstance(named, str):
            return named
        implied = {"string": _STRINGS, "number": _NUMBERS, "array": _ARRAYS, "object": _OBJECTS}
        return next((kind for kind, words in implied.items() if any(word in schema for word in words)), "string")

    def _number(self, schema: Schema, whole: bool) -> float:
        step = schema.get("multipleOf") or (1 if whole else 0)
        beside = step or 1e-3
        least = schema.get("minimum", schema.get("exclusiveMinimum", -beside) + beside)
        most = schema.get("maximum", schema["exclusiveMaximum"] - beside if "exclusiveMaximum" in schema else None)
        if most is None:
            most = least + 20 * (step or 0.5)
        elif "minimum" not in schema and "exclusiveMinimum" not in schema:
            least = min(least, most)
        if not step:
            return self._generator.uniform(least, most) if most >= least else float(least)
        first, last = -int(-least // step), int(most // step)
        return self._generator.randint(first, max(first, last)) * step

    def _string(self, schema: Schema) -> str:
        least, most = int(schema.get("minLength", 0)), int(schema.get("maxLength", _LONGEST))
        if isinstance(pattern := schema.get("pattern"), str):
            return matching(pattern, self._generator, least, most) or self._generator.choice(_WORDS)
        if schema.get("contentEncoding") == "base64":
            return base64.b64encode(self._generator.choice(_WORDS).encode()).decode()
        moment = _DAY + datetime.timedelta(seconds=self._generator.randrange(10**8))
        formats = {
            "date": moment.date().isoformat(),
            "date-time": moment.isoformat(),
            "time": moment.time().isoformat(),
            "duration": f"PT{self._generator.randint(1, 3600)}S",
            "uuid": str(uuid.UUID(int=self._generator.getrandbits(128), version=4)),
            "decimal": f"{self._generator.randint(0, 999)}.5",
            "email": "ada@example.com",
            "uri": "https://example.com/a",
            "hostname": "example.com",
            "ipv4": "192.0.2.1",
            "ipv6": "2001:db8::1",
        }
        if (made := formats.get(str(schema.get("format")))) is not None:
            return made
        fitting = [each for each in _WORDS if least <= len(each) <= most]
        return self._generator.choice(fitting) if fitting else "a" * max(least, min(most, 1))

    def _array(self, schema: Schema, depth: int) -> list[Any]:
        first: Sequence[Schema] = schema.get("prefixItems", ())
        made = [self.value(part, depth + 1) for part in first]
        least, items = int(schema.get("minItems", 0)), schema.get("items", {})
        if items is False or (first and least <= len(made)):
            return made
        most = int(schema.get("maxItems", max(least, 2 if depth < _DEEPEST else 0)))
        count = self._generator.randint(min(least, most), min(most, least + 2))
        while len(made) < count:
            made.append(self.value(items, depth + 1))
        return _different(made) if schema.get("uniqueItems") else made


def _different(values: list[Any]) -> list[Any]:
    kept: list[Any] = []
    for each in values:
        if each not in kept:
            kept.append(each)
    return kept
