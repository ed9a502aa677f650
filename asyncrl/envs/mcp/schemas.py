"""What is wrong with a JSON schema that a server sent, and with a value by it. Runs in a process that can be killed.

What always holds: nothing is fetched or opened, whatever a schema refers to; a schema that passes has references to itself alone,
none of which leads back to where it stands without a step into the value.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from jsonschema.exceptions import SchemaError, best_match
from jsonschema.protocols import Validator
from jsonschema.validators import validator_for
from jsonschema_specifications import REGISTRY
from referencing import Registry, Resource
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT202012, Schema, specification_with

from asyncrl.core.text import short

DEEPEST = 100
"""Levels of a schema."""
MOST_CHECKS = 10_000
"""Subschemas that a schema may apply to one and the same value."""
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
_ONE, _MANY, _NAMED = ("not", "if", "then", "else"), ("allOf", "anyOf", "oneOf"), ("dependentSchemas", "dependencies")
"""Keywords that apply one subschema, a list of them, or a dictionary of them, to the same value."""


def wrong_with(schema: Any) -> str:
    """Return what is wrong with the schema of a tool's arguments, as what follows its name; empty if nothing is."""
    if not isinstance(schema, dict) or schema.get("type") != "object":
        return "is not of type object"
    if _is_deeper(schema, DEEPEST):
        return f"has more than {DEEPEST} levels"
    try:
        validator_for(schema).check_schema(schema)
    except SchemaError as error:
        return f"is wrong: {error.message[:300]}"
    return _Walk(schema).problem()


def misfit(schema: dict[str, Any], value: Any) -> str:
    """Return what is wrong with ``value``; empty if it fits the schema."""
    validator: Validator = validator_for(schema)(schema, registry=Registry())
    error = best_match(validator.iter_errors(value))
    if error is None:
        return ""
    place = "".join(f"[{part!r}]" for part in error.absolute_path)
    return f"{error.message[:300]}{f' at {place}' if place else ''}"


_Part = tuple[Resource[Schema], Any]
"""A part of a schema, and what resolves its references, whose class referencing does not export."""


class _Wrong(Exception):
    """Something is wrong with a schema; the text says what."""


class _Walk:
    """A walk through all parts of a schema, also those that only a reference leads to."""

    def __init__(self, schema: dict[str, Any]) -> None:
        self._specification = specification_with(str(schema.get("$schema")), default=DRAFT202012)
        root = self._specification.create_resource(schema)
        self._open: list[_Part] = [(root, REGISTRY.resolver_with_root(root))]
        self._checks: dict[int, int] = {}
        self._entered: set[int] = set()
        self._held: list[Schema] = []  # so that no id comes twice

    def problem(self) -> str:
        """Return what is wrong; empty if nothing is."""
        try:
            while self._open:
                self._count(*self._open.pop())
        except _Wrong as wrong:
            return str(wrong)
        except RecursionError:
            return "has references that are nested too deeply"
        return ""

    def _count(self, part: Resource[Schema], resolver: Any) -> int:
        """Check a part; return how many subschemas it applies to one value, itself included. What is below is left open."""
        contents = part.contents
        if not isinstance(contents, Mapping):
            return 1
        key = id(contents)
        if key in self._checks:
            return self._checks[key]
        if key in self._entered:
            raise _Wrong("has references that go round in a circle, and would be followed for ever")
        self._entered.add(key)
        self._held.append(contents)
        checks = 1
        for applied in self._applied(contents, resolver):
            checks += self._count(*applied)
            if checks > MOST_CHECKS:
                raise _Wrong(f"would check one value by more than {MOST_CHECKS:,} subschemas")
        self._checks[key] = checks
        self._open += [(below, resolver.in_subresource(below)) for below in part.subresources()]
        return checks

    def _applied(self, contents: Mapping[str, Any], resolver: Any) -> Iterator[_Part]:
        """Yield the parts that a schema applies to its own value."""
        for keyword in _REFERENCES:
            if isinstance(reference := contents.get(keyword), str):
                try:
                    found = resolver.lookup(reference)
                except Unresolvable:
                    raise _Wrong(
                        f"refers to {short(reference)}, which it does not hold, and nothing is fetched; "
                        "write what it stands for under $defs"
                    ) from None
                yield self._specification.create_resource(found.contents), found.resolver
        several = [contents[keyword] for keyword in _MANY if isinstance(contents.get(keyword), list)]
        named = [contents[keyword].values() for keyword in _NAMED if isinstance(contents.get(keyword), Mapping)]
        single = [[contents[keyword]] for keyword in _ONE if keyword in contents]
        for schemas in (*several, *named, *single):
            for schema in schemas:
                if isinstance(schema, Mapping):
                    part = self._specification.create_resource(schema)
                    yield part, resolver.in_subresource(part)


def _is_deeper(value: object, most: int) -> bool:
    level: list[object] = [value]
    for _ in range(most + 1):
        below: list[object] = []
        for each in level:
            below += each.values() if isinstance(each, dict) else each if isinstance(each, list) else ()
        if not below:
            return False
        level = below
    return True
