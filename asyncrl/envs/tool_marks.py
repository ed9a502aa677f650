"""The mark that makes a method a tool, and the methods of a class that have it.

What always holds: a method that was marked is a tool, or its class is refused. It is not lost under a decorator, behind another
tool of its name, or among the methods that an environment has for other ends.
"""

import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import suppress
from functools import partial, partialmethod
from types import FunctionType, MethodType
from typing import Any, NamedTuple, TypeVar, overload

import msgspec

Method = TypeVar("Method", bound=Callable[..., Any])
_MARK = "__asyncrl_tool__"
_PLAIN = "mark a plain method, which may call what it decorates now"
REPLACED_TOOLS = (
    "which holds the methods that are marked with @tool; mark those that it shall have, and write `name = None` in the body of a "
    "subclass to do without an inherited one"
)
"""What is wrong with a class whose ``tools`` its author has set, and what to do."""
_DEEPEST = 5
"""How many decorators deep a marked method is looked for."""


class Marks(msgspec.Struct, frozen=True):
    """The arguments of :func:`tool`, which explains them."""

    timeout_s: float | None = None
    max_calls: int | None = None
    process: bool = False


class MarkedMethod(NamedTuple):
    """A method that is a tool: its name and function, what its mark says, and whether it is a ``staticmethod``."""

    name: str
    function: Callable[..., Any]
    marks: Marks
    is_static: bool


@overload
def tool(method: Method) -> Method: ...


@overload
def tool(
    *, timeout_s: float | None = None, max_calls: int | None = None, process: bool = False
) -> Callable[[Method], Method]: ...


def tool(
    method: Method | None = None, *, timeout_s: float | None = None, max_calls: int | None = None, process: bool = False
) -> Method | Callable[[Method], Method]:
    """Mark a method of a :class:`~asyncrl.envs.tools.ToolEnvironment` as a tool that the model may call.

    The model is told the method's name, docstring and typed parameters; describe a parameter by ``Annotated[str, "the word"]``.
    docs/reference/tool-types.md has every type. The method returns text, or anything that JSON can carry. An ``async`` method
    runs in an asyncio task of its own, in the event loop of all episodes, and must not block the loop. A plain method runs in
    a thread of its own; if it misses its deadline, it is interrupted some seconds later, at its next Python instruction.

    The calls of one turn run side by side. Tools that must run in the order of the calls can share an ``asyncio.Lock``, which
    lets them in as they come.

    Args:
        method: the method; a ``staticmethod`` gets no ``self``.
        timeout_s: deadline of a call in seconds, in place of the recipe's ``tool_timeout_s``.
        max_calls: the most calls in an episode; a further one is answered with an error.
        process: run the calls in processes of the worker, for code that computes for long or cannot be trusted to end: a call
            that misses its deadline is killed, with the processes that it started. It must be a ``staticmethod``, since nothing
            of the environment is there, and its class must be one that a module has by name. Time in which all processes are
            busy does not count.

    Raises:
        TypeError: what is marked is no plain function, or its class has a tool of that name already.
        ValueError: an argument is not of its type or not above 0.
    """
    for name, value in (("timeout_s", timeout_s), ("max_calls", max_calls)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf):
            raise ValueError(f"@tool({name}={value!r}): it must be a number above 0, or left out")
    if isinstance(max_calls, float):
        raise ValueError(f"@tool(max_calls={max_calls!r}): it must be an integer")
    marks = Marks(timeout_s, max_calls, process)
    return partial(_marked, marks=marks) if method is None else _marked(method, marks)


def _marked(method: Method, marks: Marks) -> Method:
    function = _function(method)
    if not inspect.isfunction(function):
        remedy = "make it a @staticmethod, or a method with `self`" if isinstance(method, classmethod) else _PLAIN
        raise TypeError(f"@tool stands above {_what(method)}, not above a plain method; {remedy}")
    body = _class_body()
    earlier = _function(body.get(function.__name__))
    if earlier is not function and hasattr(earlier, _MARK):
        raise TypeError(f"{body['__qualname__']} has two tools named {function.__name__!r}; rename one of them")
    setattr(function, _MARK, marks)
    return method


def _class_body() -> Mapping[str, Any]:
    """Return what the class body around a mark has defined so far; nothing outside of a class."""
    frame = inspect.currentframe()
    while frame is not None and frame.f_globals is globals():
        frame = frame.f_back
    return {} if frame is None or "__qualname__" not in frame.f_locals else frame.f_locals


def _what(marked: object) -> str:
    name = getattr(marked, "__name__", "")
    return f"{name + ', ' if name else ''}an object of class {type(marked).__qualname__}"


def marked_methods(environment: type, reserved: Set[str]) -> Iterator[MarkedMethod]:
    """The tools of a class, in the order of their names.

    Args:
        reserved: what environments have methods or attributes of.

    Raises:
        TypeError: a marked method would be no tool, or more than a tool.
    """
    for name, value in inspect.getmembers_static(environment):
        function = _function(value)
        marks = getattr(function, _MARK, None) if inspect.isfunction(function) else None
        if marks is None:
            _refuse_lost(environment, name, value)
        elif name in reserved:
            problem = f"a tool cannot be named {name!r}, which an environment has for another end, so it would be used for both"
            raise TypeError(f"{problem}; rename it")
        else:
            yield MarkedMethod(name, function, marks, isinstance(value, staticmethod))


def refuse_late(environment: type, tools: Mapping[str, object], marked: Mapping[str, object]) -> None:
    """Refuse a class that was given a marked method, or other ``tools``, after its body, when its tools were already known.

    Args:
        tools: what its ``tools`` are now.
        marked: what they were after its body.

    Raises:
        TypeError: it was.
    """
    if tools is not marked:
        raise TypeError(f"{environment.__name__}.tools was set after the body of the class, {REPLACED_TOOLS}")
    for name, value in inspect.getmembers_static(environment):
        if name not in marked and inspect.isfunction(function := _function(value)) and hasattr(function, _MARK):
            remedy = f"set it in the body of the class, or of a subclass: `{name} = tool(...)`"
            raise TypeError(f"{name} was marked, but set on {environment.__name__} after its body, so it is no tool; {remedy}")


def refuse_on_instance(environment: object, name: str, value: object, tools: Mapping[str, Any]) -> None:
    """Refuse a marked function that becomes an attribute of an instance, as if it were a tool from then on.

    A method of the class, also one that it replaces or wraps, and one of another environment may have a name that is no tool's.
    A bare function of another class could be meant as a tool as well as not; a partial one is not.

    Raises:
        TypeError: it does.
    """
    function = value.__func__ if isinstance(value, MethodType) else value
    if not inspect.isfunction(function) or not hasattr(function, _MARK):
        return
    has = partial(_has, type(environment))  # a wrapper of functools.wraps has the mark of what it wraps
    known = (isinstance(value, MethodType) and value.__self__ is not environment) or has(inspect.unwrap(function, stop=has))
    if not known or (name in tools and tools[name].method is not function):
        remedy = (
            f"set it in the body of the class: `{name} = tool(...)`; an episode can do with fewer: `self.tools = {{...}}`; "
            "what shall be no tool can be held as `functools.partial(...)`, under a name that no tool has"
        )
        raise TypeError(f"{name} was marked, but set on an instance of {type(environment).__name__}, so it is no tool; {remedy}")


def _has(environment: type, function: Callable[..., Any]) -> bool:
    """Whether a class, or one that it is derived from, has this function as a method."""
    function = function.__func__ if isinstance(function, MethodType) else function
    return any(_function(value) is function for base in environment.__mro__ for value in vars(base).values())


def _function(value: Any) -> Any:
    return value.__func__ if isinstance(value, staticmethod) else value


def _refuse_lost(environment: type, name: str, value: object) -> None:
    """Refuse what hides a marked method.

    Raises:
        TypeError: it does.
    """
    hides = isinstance(value, classmethod | staticmethod | property | partial | partialmethod)
    within = _marked_within(value, _DEEPEST)
    if any(inner.__name__ == name or (hides and not _has(environment, inner)) for inner in within):
        what = "a decorator" if inspect.isfunction(value) else _what(value)
        raise TypeError(f"{name} was marked, but {what} stands above @tool and hides it; write @tool above everything else")
    for base in environment.__mro__[1:]:
        inherited = _function(vars(base).get(name))
        if inspect.isfunction(value) and inspect.isfunction(inherited) and hasattr(inherited, _MARK):
            remedy = f"write @tool above this one too, or `{name} = None` to do without"
            raise TypeError(f"{name} is a tool of {base.__name__}, and what replaces it is not marked; {remedy}")


def _marked_within(value: object, depth: int) -> Iterator[Callable[..., Any]]:
    """The marked functions that an object holds as decorators do. None of the author's code is called."""
    if inspect.isfunction(value) and hasattr(value, _MARK):
        yield value
    elif depth and not isinstance(value, type):
        for each in _held(value):
            if callable(each) or isinstance(each, classmethod | staticmethod):
                yield from _marked_within(each, depth - 1)


def _held(value: object) -> Iterator[object]:
    match value:
        case classmethod() | staticmethod():
            yield value.__func__
        case property():
            yield value.fget
        case partial() | partialmethod():
            yield value.func
        case FunctionType():
            for cell in value.__closure__ or ():
                with suppress(ValueError):  # not set yet
                    yield cell.cell_contents
        case _:
            with suppress(AttributeError):
                yield from object.__getattribute__(value, "__dict__").values()
