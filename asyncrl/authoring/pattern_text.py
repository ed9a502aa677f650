"""Makes texts that a regular expression matches, from the tree that Python's own parser of them gives."""

import random
import re
from re import _constants, _parser  # type: ignore[attr-defined]  # nothing public reads a pattern
from typing import Any

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
