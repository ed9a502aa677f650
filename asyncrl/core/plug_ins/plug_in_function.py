"""Loads functions of the user's own, which a recipe names as ``module:function``, with their options."""

import inspect
import os
import traceback
from collections.abc import Callable, Mapping
from functools import partial
from types import FunctionType
from typing import Any

import msgspec

from asyncrl.core.errors import AsyncRLError, RecipeError
from asyncrl.core.plug_ins.plug_in import find_named
from asyncrl.core.text import describe_error


class FunctionBroken(AsyncRLError):
    """A function of the user's own raised an error, or returned what it must not.

    Args:
        place: key of the recipe that names the function, e.g. ``algorithm.loss``.
        what: the function and where it is defined, e.g. ``my:clip (/home/me/my.py:3)``.
    """

    def __init__(self, place: str, what: str, problem: str, remedy: str) -> None:
        self.place, self.what, self.problem, self.remedy = place, what, problem, remedy
        super().__init__(f"{place}: {what} {problem}; {remedy}")


class UserFunction(msgspec.Struct, frozen=True):
    """A function of the user's own.

    Attributes:
        place: key of the recipe that names it, e.g. ``algorithm.loss``.
        name: ``module:function``.
        file: the file that defines it.
        line: the line there, counted from 1.
        call: the function with the recipe's options.
    """

    place: str
    name: str
    file: str
    line: int
    call: Callable[..., Any]

    def __call__(self, *arguments: Any) -> Any:
        """Call the function.

        Raises:
            FunctionBroken: it raised an error; names the line of its file that did.
        """
        try:
            return self.call(*arguments)
        except (Exception, SystemExit) as error:
            # The function is the user's, so it may raise anything, even by exit().
            steps = traceback.walk_tb(error.__traceback__)
            lines = [line for frame, line in steps if os.path.abspath(frame.f_code.co_filename) == self.file]
            at = f" in line {lines[-1]}" if lines else ""
            raise self.broken(f"raised {describe_error(error)}{at}", "correct it there") from error

    def broken(self, problem: str, remedy: str) -> FunctionBroken:
        """The error that says what the function did; it names the function, its file and its line."""
        return FunctionBroken(self.place, f"{self.name} ({self.file}:{self.line})", problem, remedy)


def find_function(name: str, place: str) -> FunctionType:
    """Find the function that ``name`` refers to. Its module is searched for on Python's path, and last in the current folder.

    Args:
        name: ``module:function``.
        place: key of the recipe to blame.

    Raises:
        RecipeError: there is no such function, or its module cannot be imported.
    """
    found: FunctionType = find_named(name, place, "function", inspect.isfunction)
    return found


def load_function(name: str, options: Mapping[str, Any], place: str) -> UserFunction:
    """Load the function that ``name`` refers to, with options; see :func:`find_function`.

    Args:
        name: ``module:function``.
        options: its keyword arguments. The function is called with one more, its first.
        place: key of the recipe to blame, e.g. ``algorithm.loss``.

    Raises:
        RecipeError: there is no such function, it does not take the options, or its module cannot be imported.
    """
    named = f"{place}.name"
    found = find_function(name, named)
    code = inspect.unwrap(found).__code__
    function = UserFunction(place, name, os.path.abspath(code.co_filename), code.co_firstlineno, partial(found, **options))
    where = f"{name} ({function.file}:{function.line})"
    if inspect.iscoroutinefunction(found) or inspect.isgeneratorfunction(found):
        raise RecipeError(named, f"{where} is async or a generator", "write a plain function that returns its result")
    try:
        inspect.signature(found).bind(None, **options)
    except TypeError as error:
        taken = ", ".join(list(inspect.signature(found).parameters)[1:]) or "none"
        problem = f"{where} cannot be called with one argument and options {dict(options)}: {error}"
        raise RecipeError(f"{place}.options", problem, f"its options are: {taken}") from error
    return function
