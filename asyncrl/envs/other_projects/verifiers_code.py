"""Hears what the code of an environment of verifiers does in a rollout: which calls its tools took, and what it raised.

What always holds: whatever it raises reaches the library as before, which counts a function of the rubric that raised as 0, and
tells the model what a tool raised.
"""

import inspect
import time
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from functools import update_wrapper
from types import SimpleNamespace
from typing import Any

import verifiers

from asyncrl.core.messages import CallOutcome, CallRecord
from asyncrl.core.plug_ins.users_error import UsersError
from asyncrl.core.text import describe_error


class Heard:
    """What is heard of one rollout.

    Attributes:
        calls: records of calls that failed, by the call's id.
        errors: what tools and functions of the rubric raised.
    """

    def __init__(self) -> None:
        self.calls: dict[str, CallRecord] = {}
        self.errors: list[UsersError] = []

    def drained(self) -> tuple[UsersError, ...]:
        """Return the errors, and forget them."""
        errors, self.errors = tuple(self.errors), []
        return errors


heard: ContextVar[Heard] = ContextVar("heard")
"""What is heard of the rollout of this context."""


def hear_tools(environment: Any) -> None:
    """Hear of the calls of an environment's tools, and of those that a group consists of."""
    for part in getattr(environment, "env_map", {}).values():
        hear_tools(part)
    if isinstance(environment, verifiers.ToolEnv):
        environment.call_tool = _heard_call(environment.call_tool, environment.tool_map)


def _heard_call(call_tool: Callable[..., Any], tools: Mapping[str, Callable[..., Any]]) -> Callable[..., Any]:
    async def called(tool_name: str, tool_args: dict[str, Any], tool_call_id: str, **named: Any) -> Any:
        began = time.monotonic()
        try:
            return await call_tool(tool_name, tool_args, tool_call_id, **named)
        except Exception as error:
            tool, of = tools.get(tool_name), heard.get()
            outcome = CallOutcome.ERROR if tool is None or _fits(tool, tool_args) else CallOutcome.MALFORMED
            of.calls[tool_call_id] = CallRecord(tool_name, time.monotonic() - began, outcome, describe_error(error))
            if outcome is CallOutcome.ERROR:
                of.errors.append(UsersError.of(error, tool))
            raise

    return called


def _fits(tool: Callable[..., Any], arguments: Mapping[str, Any]) -> bool:
    try:
        inspect.signature(tool).bind(**arguments)
    except TypeError:
        return False
    return True


def rubrics(rubric: Any) -> Iterator[Any]:
    """The rubric and those that it consists of, or that it has for each environment of a group."""
    yield rubric
    for part in (*getattr(rubric, "rubrics", ()), *(each.rubric for each in getattr(rubric, "env_map", {}).values())):
        yield from rubrics(part)


def heard_function(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of a rubric of which we hear what it raises."""

    async def called(*arguments: Any, **named: Any) -> float:
        try:
            value = function(*arguments, **named)
            return float(await value if inspect.isawaitable(value) else value)
        except Exception as error:
            heard.get().errors.append(UsersError.of(error, function))
            raise

    unnamed: Any = SimpleNamespace(__name__=repr(function))  # such as a partial one: the library names its metric by that
    return update_wrapper(update_wrapper(called, unnamed), function)
