"""Scores answers by reasoning-gym's own scorers, in a process that can be killed.

Some of these scorers give an answer to ``eval``, or to sympy's ``parse_expr``, which is ``eval`` too. What always holds: no code
of an answer is run. An answer that would have to be is worth what the scorer gives for one that it cannot read.
"""

import ast
import importlib
import re
from functools import lru_cache
from types import ModuleType
from typing import Any

import msgspec

from asyncrl.core.ids import TaskId
from asyncrl.core.task import Task
from asyncrl.envs.builtin.reasoning_gym_families import Families, Family
from asyncrl.envs.hosting.process_functions import ProcessFunctions

sympy: Any = importlib.import_module("sympy")  # which has no types

SECONDS = 20.0
"""Deadline of one score, for powers of powers and the like."""
LONGEST = 2_000
"""Characters of an expression that is parsed."""

LISTS_EVALUATED = ("algorithmic.binary_matrix", "algorithmic.spiral_matrix", "algorithmic.string_insertion", "games.n_queens")
"""Modules that evaluate an answer, which may be a list."""
EXPRESSIONS_PARSED = {
    "games.countdown": "parse_expr",
    "games.puzzle24": "parse_expr",
    "algebra.intermediate_integration": "sympy",
    "algebra.simple_integration": "sympy",
    "algebra.polynomial_multiplication": "sp",
}
"""Modules that have sympy parse an answer, and the name by which they do."""
_FUNCTIONS = {"sqrt", "exp", "log", "ln", "Abs", "pi"} | {
    f"{first}{name}{last}" for name in ("sin", "cos", "tan", "sec", "csc", "cot") for first in ("", "a") for last in ("", "h")
}
_SIGNS = re.compile(r"[\w\s+\-*/^().,]*", re.ASCII)
_ATTRIBUTE = re.compile(r"\.\s*[A-Za-z_]")
_NO_NUMBER = re.compile(r"(?<![A-Za-z])(?:nan|inf|infinity)(?![A-Za-z])", re.IGNORECASE)
"""What Python reads as a number and every comparison of scorers fails with, or takes for the nearest."""
_NAME = re.compile(r"(?<![\w.])([A-Za-z_]\w*)(\s*\()?")


def plain_expression(text: str, *arguments: Any, **keywords: Any) -> Any:
    """Have sympy parse an expression of numbers, variables of one letter, and the usual functions.

    Raises:
        ValueError: there is anything else in the text.
    """
    names = _NAME.findall(text)
    known = all(name in _FUNCTIONS or (len(name) == 1 and not called) for name, called in names)
    if len(text) > LONGEST or not _SIGNS.fullmatch(text) or _ATTRIBUTE.search(text) or not known:
        raise ValueError("this is no plain expression")
    return sympy.parse_expr(text, *arguments, **keywords)


class _Sympy(ModuleType):
    """The library sympy with another ``parse_expr``."""

    parse_expr = staticmethod(plain_expression)

    def __getattr__(self, name: str) -> Any:
        return getattr(sympy, name)


def _disarm() -> None:
    """Take from the scorers what runs an answer's code."""
    for place in LISTS_EVALUATED:
        vars(importlib.import_module(f"reasoning_gym.{place}"))["eval"] = ast.literal_eval
    for place, name in EXPRESSIONS_PARSED.items():
        module = importlib.import_module(f"reasoning_gym.{place}")
        setattr(module, name, plain_expression if name == "parse_expr" else _Sympy(name))


_disarm()


class Scoring(ProcessFunctions):
    """The functions that the process for scores runs."""

    @staticmethod
    def score(families: str, data: str, answer: str) -> str:
        """Return the score of an answer to the task with this data; 0 if it is only this answer that the scorer fails at."""
        task = Task(id=TaskId("scored"), prompt="?", data=msgspec.json.decode(data))
        known = _families(families)
        expected = str(known.entry(task)["answer"] or "")
        if _NO_NUMBER.search(answer) and not _NO_NUMBER.search(expected):
            return "0"
        try:
            return str(known.score(task, answer))
        except Exception:  # noqa: BLE001 - whatever the library raises
            known.score(task, expected)
            return "0"


@lru_cache(maxsize=4)
def _families(described: str) -> Families:
    return Families(msgspec.json.decode(described, type=dict[str, Family]))
