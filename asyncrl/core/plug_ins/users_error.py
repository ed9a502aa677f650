"""Finds out where the user's code raised an error: in which method, in which line, and by which frames.

What always holds: our own frames are left out of what the user is shown; and whatever the error is, looking at it raises nothing.
"""

import inspect
import os
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterable, Iterator
from enum import Enum, auto
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import msgspec

from asyncrl.core.text import class_name, describe_error, text_of, without_middle, writable

_ROOT = Path(__file__).parents[3]
_OURS = f"{_ROOT / 'asyncrl'}{os.sep}"
"""How the file names of our frames begin."""
USERS_CODE_MARK = "LIKE_USERS_CODE"
"""The name that a module of ours defines as True if its errors are to be shown like those of the user's own code."""
_LIBRARIES = tuple(f"{Path(sysconfig.get_path(name))}{os.sep}" for name in ("stdlib", "platstdlib", "purelib", "platlib"))
"""How the file names of frames of Python's library and of installed packages begin."""
_CELL = "<ipython-input-"
"""How the file names of cells began before IPython 8; since then they lie in a folder that is not there."""
_SENTENCE = 300
"""The most characters of an error's text in a sentence of one line."""
_TRACEBACK = 3_000
"""The most characters of a traceback."""


class RaisedOnPurpose(Exception):
    """Base of the errors that are ours, whose texts say what is wrong and what to do."""


class WrongResult(ValueError):
    """A method of the user's returned what it may not.

    Args:
        method: the method.
        problem: what it returned and what it should, e.g. ``returned None; it must return a number``.
    """

    def __init__(self, method: Callable[..., Any], problem: str) -> None:
        self.method, self.problem = method, problem
        super().__init__(problem)


class _Side(Enum):
    """Whose code a frame runs."""

    OURS = auto()
    LIBRARY = auto()
    USER = auto()


class UsersError(msgspec.Struct, frozen=True):
    """An error of the user's code, and where it comes from.

    Attributes:
        method: name of the function of the user's that our code had called, e.g. ``reward``; empty if none can be named.
        file: the user's file whose line raised the error or called the library that did; empty if there is none.
        line: that line, or the first line of the method if it returned something wrong.
        kind: name of the error's class.
        problem: what happened, e.g. ``raised KeyError: 'answer'``; ``cannot go on: ...`` if what it called of ours said so.
        traceback: the user's frames and those of libraries below them; empty if no frame is the user's. If an error of ours says
            all without them, its text where that is long.
    """

    method: str
    file: str
    line: int
    kind: str
    problem: str
    traceback: str = ""

    @classmethod
    def of(cls, error: BaseException, called: Callable[..., Any] | None = None) -> "UsersError":
        """Describe an error.

        Args:
            called: the method that is to blame if no frame of the error is the user's.
        """
        if isinstance(error, WrongResult):
            return cls(*_defined(error.method), "WrongResult", writable(error.problem))
        method, place = _blamed(list(traceback.walk_tb(error.__traceback__)))
        if place is None:
            name, file, line = _defined(called)
        else:
            name, (file, line) = method or "", place
        if _says_all(error):
            text = writable(f"cannot go on: {without_middle(text_of(error))}")
            return cls(name, writable(file), line, writable(class_name(error)), text, text if len(text) > _SENTENCE else "")
        trace = "" if place is None else users_traceback(error)
        problem = writable(f"raised {describe_error(error)}")
        return cls(name, writable(file), line, writable(class_name(error)), problem, writable(trace))

    @property
    def where(self) -> str:
        """File and line, to be appended to a sentence: ``" (/home/me/my_env.py:41)"``; empty if there is no file."""
        return f" ({self.file}:{self.line})" if self.file else ""

    def __str__(self) -> str:
        """One line, e.g. ``reward() of my_env.py:41 raised KeyError: 'answer'``."""
        problem = without_middle(" ".join(self.problem.split()), _SENTENCE)
        place = f" of {Path(self.file).name}:{self.line}" if self.file else ""
        return f"{self.method or 'the environment'}{'()' if self.method else ''}{place} {problem}"


def _says_all(error: BaseException) -> bool:
    """Whether we raised an error on purpose, and nothing in the user's code led to it: then frames would add nothing."""
    if not isinstance(error, RaisedOnPurpose):
        return False
    led = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    while led is not None:
        if _blamed(traceback.walk_tb(led.__traceback__))[1] is not None:
            return False
        led = led.__cause__ or (None if led.__suppress_context__ else led.__context__)
    return True


def _blamed(frames: Iterable[tuple[FrameType, int]]) -> tuple[str | None, tuple[str, int] | None]:
    """Return the user's function that our code called last, and the innermost file and line of the user's."""
    method: str | None = None
    place: tuple[str, int] | None = None
    entered = True
    for frame, line in frames:
        match _side(frame.f_code.co_filename):
            case _Side.OURS:
                entered = True
            case _Side.USER:
                if entered:
                    method, entered = frame.f_code.co_name, False
                place = frame.f_code.co_filename, line
            case _Side.LIBRARY:
                pass
    return method, place


def _defined(method: Callable[..., Any] | None) -> tuple[str, str, int]:
    """Return the name of a method, and the file and line where it is defined."""
    code = None if method is None else getattr(inspect.unwrap(method), "__code__", None)
    if not isinstance(code, CodeType):
        return str(getattr(method, "__name__", "")), "", 0
    if _side(code.co_filename) is _Side.OURS:
        return code.co_name, "", 0
    return code.co_name, code.co_filename, code.co_firstlineno


def _side(file: str) -> _Side:
    if file.startswith(_OURS):
        module = sys.modules.get(".".join(Path(file).relative_to(_ROOT).with_suffix("").parts))
        return _Side.USER if getattr(module, USERS_CODE_MARK, False) else _Side.OURS
    # What is compiled from a text, such as "<string>" or "<frozen importlib>", has no file that the user could open.
    return _Side.LIBRARY if file.startswith((*_LIBRARIES, "<")) else _Side.USER


def users_traceback(error: BaseException) -> str:
    """Return the traceback of an error without our frames, and without the library's frames before the first of the user's.

    If no frame would be left, none is left out. A very long traceback loses its middle, and so does the text of each error in it.
    """
    try:
        shown = traceback.TracebackException(type(error), error, error.__traceback__)
        for each in _chain(shown):
            each.stack = traceback.StackSummary.from_list(_users(each.stack)) if each.stack else each.stack
        return without_middle("".join(without_middle(part, _TRACEBACK // 4) for part in shown.format()), _TRACEBACK)
    except BaseException as worse:  # noqa: BLE001 - an exception's class and text are the user's code, too
        return f"(no traceback: writing it raised {class_name(worse)})"


def lines_in_notebook(error: BaseException) -> list[str]:
    """Return what a notebook shows of an error that we raise on purpose: the user's lines that led to it, and all it says."""
    lines = ["Traceback (most recent call last):"]
    for frame in traceback.extract_tb(error.__traceback__):
        cell = not Path(frame.filename).is_file()
        if _side(frame.filename) is _Side.USER or frame.filename.startswith(_CELL):
            lines.append(f"  {'Cell' if cell else f'File {frame.filename}'}, line {frame.lineno}")
            lines.extend(f"    {line}" for line in (frame.line or "").splitlines())
    return [*lines, f"{type(error).__name__}: {error}", *getattr(error, "__notes__", ())]


def _users(stack: traceback.StackSummary) -> list[traceback.FrameSummary]:
    kept: list[traceback.FrameSummary] = []
    for frame in stack:
        side = _side(frame.filename)
        if side is _Side.USER or (side is _Side.LIBRARY and kept):
            kept.append(frame)
    return kept or list(stack)


def _chain(error: traceback.TracebackException) -> Iterator[traceback.TracebackException]:
    """Yield an error and all that led to it."""
    yield error
    for each in (error.__cause__, error.__context__, *(error.exceptions or ())):
        if each is not None:
            yield from _chain(each)
