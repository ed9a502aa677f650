"""Reads the source of an environment's class for mistakes that need no episode to be seen."""

import ast
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any

from asyncrl.authoring.findings import Findings
from asyncrl.envs.base import Environment
from asyncrl.envs.tools import ToolEnvironment

_BLOCKING = {
    "time.sleep": "await asyncio.sleep(...)",
    "os.system": "await asyncio.create_subprocess_shell(...)",
    "subprocess.run": "await asyncio.create_subprocess_exec(...)",
    "subprocess.call": "await asyncio.create_subprocess_exec(...)",
    "subprocess.check_call": "await asyncio.create_subprocess_exec(...)",
    "subprocess.check_output": "await asyncio.create_subprocess_exec(...)",
    "urllib.request.urlopen": "an asynchronous client, such as aiohttp",
    "requests.get": "an asynchronous client, such as aiohttp",
    "requests.post": "an asynchronous client, such as aiohttp",
    "requests.request": "an asynchronous client, such as aiohttp",
    "httpx.get": "httpx.AsyncClient",
    "httpx.post": "httpx.AsyncClient",
    "input": "nothing: nobody sits at the terminal of a run",
}
"""Calls that block a thread, and what to use in an ``async def`` instead."""
_SWALLOWING = {"BaseException", "CancelledError", "asyncio.CancelledError"}


def check_source(environment: type[Environment], findings: Findings) -> None:
    """Look at tools and methods of a class."""
    if issubclass(environment, ToolEnvironment):
        _check_tools(environment, findings)
        for base in environment.__mro__:
            if issubclass(base, Environment) and base not in (Environment, ToolEnvironment):
                _check_replaced(base, findings)
    for method in _own_methods(environment):
        _check_method(method, findings)


def place_of(method: Callable[..., Any]) -> str:
    """Where a method is defined, e.g. ``Words.look_up (words.py:12)``."""
    code = inspect.unwrap(method).__code__
    return f"{code.co_qualname.rpartition('<locals>.')[2]} ({code.co_filename}:{code.co_firstlineno})"


def _own_methods(environment: type[Environment]) -> Iterator[FunctionType]:
    for base in environment.__mro__:
        if base in (Environment, ToolEnvironment) or not issubclass(base, Environment):
            continue
        for value in vars(base).values():
            function = value.__func__ if isinstance(value, classmethod | staticmethod) else value
            if inspect.isfunction(function):
                yield function


def _check_tools(environment: type[ToolEnvironment], findings: Findings) -> None:
    for name, tool in environment.tools.items():
        place = place_of(tool.method)
        if not tool.spec.description.strip():
            findings.error("tools", place, f"tool {name} has no docstring, so the model is not told what it does", "write one")
        for parameter, schema in tool.spec.parameters.get("properties", {}).items():
            if not schema.keys() - {"default", "description"}:
                problem = f"parameter {parameter!r} may be anything, so the model has to guess"
                findings.warning("tools", place, problem, f"give it a narrow type, e.g. `{parameter}: str`")
    if not environment.tools:
        remedy = "mark methods with @tool; without any, the model can only answer"
        findings.warning("tools", environment.__qualname__, "it has no tools", remedy)


def _check_replaced(environment: type[Environment], findings: Findings) -> None:
    """Look for tools that a later method of the same class replaces: Python keeps the last one only, and says nothing."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(environment)))
    except (OSError, TypeError, SyntaxError):
        return
    body = getattr(tree.body[0], "body", [])
    methods = [each for each in body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]
    last = {method.name: method for method in methods}
    for method in methods:
        marked = any(re.match(r"(\w+\.)*tool\b", ast.unparse(decorator)) for decorator in method.decorator_list)
        if marked and last[method.name] is not method:
            problem = f"tool {method.name} is replaced by a later method of the same name, so the model is not offered it"
            findings.error("tools", f"{environment.__qualname__}.{method.name}", problem, "rename one of them")


def _check_method(method: FunctionType, findings: Findings) -> None:
    if not inspect.iscoroutinefunction(method):
        return
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(method)))
    except (OSError, TypeError, SyntaxError):
        return  # without its source there is nothing to read
    code = method.__code__
    for node in _within(tree.body[0]):
        line = code.co_firstlineno + getattr(node, "lineno", 1) - 1
        place = f"{code.co_qualname.rpartition('<locals>.')[2]} ({code.co_filename}:{line})"
        if isinstance(node, ast.Call) and (instead := _BLOCKING.get(ast.unparse(node.func))):
            problem = f"`{ast.unparse(node.func)}` in an async method stops all episodes of the generator meanwhile"
            findings.error("blocking", place, problem, f"use {instead}, or make it a plain `def` tool, which runs in a thread")
        if isinstance(node, ast.ExceptHandler) and _swallows(node):
            caught = f"except {ast.unparse(node.type)}" if node.type is not None else "except"
            problem = f"`{caught}:` catches the cancellation of an episode that ends early, so it goes on nevertheless"
            findings.error("cancellation", place, problem, "catch `Exception`, or end the handler with `raise`")


def _within(function: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a function, without those of functions that it defines: those may run elsewhere."""
    for child in ast.iter_child_nodes(function):
        yield child
        if not isinstance(child, ast.FunctionDef | ast.Lambda):
            yield from _within(child)


def _swallows(handler: ast.ExceptHandler) -> bool:
    caught = handler.type
    names = caught.elts if isinstance(caught, ast.Tuple) else [caught]
    wide = any(each is None or ast.unparse(each) in _SWALLOWING for each in names)
    return wide and not any(isinstance(node, ast.Raise) for node in ast.walk(handler))
