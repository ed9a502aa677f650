"""Makes up values that fit a JSON schema, for calls that no model has made.

It knows what schemas of Python signatures and of servers usually say. What it makes is a try: whether a call fits, the tool says.
"""

import base64
import datetime
import random
import re
import uuid
from collections.abc import Mapping, Sequence
from re import _constants, _parser  # type: ignore[attr-defined]  # nothing public reads a pattern
from typing import Any

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


_MORE = 3
"""How often something is repeated beyond its least, at most."""
_TRIES = 20
_CHARACTERS = [chr(code) for code in range(32, 127)]
_CATEGORIES = {
    _constants.CATEGORY_DIGIT: r"\d",
    _constants.CATEGORY_NOT_DIGIT: r"\D",
    _constants.CATEGORY_WORD: r"\w",
    _constants.CATEGORY_NOT_WORD: r"\W",
    _constants.CATEGORY_SPACE: r"\s",
    _constants.CATEGORY_NOT_SPACE: r"\S",
}


class _Unmade(Exception):
    """A part of a pattern for which no text is made, such as a look ahead."""


def matching(pattern: str, generator: random.Random, least: int = 0, most: int = 100_000) -> str | None:
    """Make a text of ``least`` to ``most`` characters in which ``pattern`` is found; None if that does not succeed."""
    try:
        tree = _parser.parse(pattern)
        for _ in range(_TRIES):
            made = _text(tree, generator, {})
            for text in (made, made.ljust(least, "a"), made.rjust(least, "a")):
                if least <= len(text) <= most and re.search(pattern, text):
                    return text
    except (re.error, _Unmade, RecursionError, OverflowError):
        pass
    return None


def _text(tree: Any, generator: random.Random, groups: dict[int, str]) -> str:
    return "".join(_part(kind, value, generator, groups) for kind, value in tree)


def _part(kind: Any, value: Any, generator: random.Random, groups: dict[int, str]) -> str:
    match str(kind):
        case "LITERAL":
            return chr(value)
        case "NOT_LITERAL":
            return generator.choice([each for each in _CHARACTERS if each != chr(value)])
        case "ANY":
            return generator.choice(_CHARACTERS)
        case "AT":
            return ""
        case "IN":
            return generator.choice(_class(value))
        case "BRANCH":
            return _text(generator.choice(value[1]), generator, groups)
        case "SUBPATTERN":
            number, _, _, inner = value
            groups[number] = _text(inner, generator, groups)
            return groups[number]
        case "GROUPREF":
            return groups.get(value, "")
        case "MAX_REPEAT" | "MIN_REPEAT" | "POSSESSIVE_REPEAT":
            least, most, inner = value
            return "".join(_text(inner, generator, groups) for _ in range(generator.randint(least, min(most, least + _MORE))))
        case _:
            raise _Unmade


def _class(parts: Any) -> list[str]:
    """The characters of ``[...]``."""
    wanted = not parts or str(parts[0][0]) != "NEGATE"
    found = [each for each in _CHARACTERS if any(_has(kind, value, each) for kind, value in parts) == wanted]
    rare = [chr(value) for kind, value in parts if str(kind) == "LITERAL"] if wanted else []
    if not found + rare:
        raise _Unmade
    return found + rare


def _has(kind: Any, value: Any, character: str) -> bool:
    match str(kind):
        case "LITERAL":
            return bool(ord(character) == value)
        case "RANGE":
            return bool(value[0] <= ord(character) <= value[1])
        case "CATEGORY":
            return re.match(_CATEGORIES[value], character) is not None
        case _:
            return False
