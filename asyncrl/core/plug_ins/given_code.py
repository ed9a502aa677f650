"""Classes and functions that a program gives to a run by value, such as those of a notebook's cells, as a module of Python.

A program writes the module (:func:`write_module`); the run's processes import it by its name like any other, so that a recipe
names what is in it as ``module:Class``. What always holds: the name follows from the content, so that two modules of one name are
equal; and what the program has in an importable module is not copied, but named there.
"""

import base64
import hashlib
import importlib.util
import io
import linecache
import pickle
import re
import sys
from collections import ChainMap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any, ClassVar

import cloudpickle
import msgspec

from asyncrl.core.errors import RecipeError
from asyncrl.core.files.cache_folder import cache_folder
from asyncrl.core.files.whole_file import write_whole
from asyncrl.core.text import describe_error, short

_PREFIX = "given_"
_TRACKER = re.compile(rb"\b[0-9a-f]{32}\b")
"""What cloudpickle tells classes apart by; it is made anew in each process."""
_TEXT = '''"""Classes and functions of the program that launched the run: {names}. Written by asyncrl; runs what it holds."""

from asyncrl.core.plug_ins.given_code import adopt

adopt(globals(), {pickled!r})
'''
MOST_BYTES = 64 << 20
"""The most that may be given, with all that it refers to."""


def importable_name(given: type | FunctionType) -> str | None:
    """Return ``module:name`` if any process can import what is given; else None."""
    module, name = given.__module__, given.__qualname__
    found = sys.modules.get(module)
    if module == "__main__" or found is None or getattr(found, name, None) is not given:
        return None
    try:
        return f"{module}:{name}" if importlib.util.find_spec(module) is not None else None
    except (ValueError, ImportError):  # a module that was made by hand
        return None


def module_of(given: Sequence[tuple[str, type | FunctionType]]) -> tuple[str, str]:
    """Return the name and the text of a module that holds what is given.

    Args:
        given: classes and functions of different names, each after the recipe key that is to blame if it cannot be copied.

    Raises:
        RecipeError: something refers to what cannot leave this process, or to too much.
    """
    try:
        pickled = _pickled({each.__name__: each for _, each in given})
    except RecipeError:
        raise
    except Exception as error:  # whatever the objects raise that it refers to
        for place, each in given:
            _refuse_if_stuck(place, each)
        raise RecipeError("", f"what was given cannot be copied: {describe_error(error)}", "give what can be pickled") from error
    if len(pickled) > MOST_BYTES:
        problem = f"what was given refers to {len(pickled) >> 20} MiB of data, and {MOST_BYTES >> 20} MiB are allowed"
        raise RecipeError(given[0][0], problem, "read large data from a file, in share() or __init__")
    return f"{_PREFIX}{hashlib.sha256(pickled).hexdigest()[:12]}", _TEXT.format(
        names=", ".join(each.__name__ for _, each in given), pickled=base64.b85encode(pickled).decode()
    )


def write_module(name: str, text: str, folder: Path) -> None:
    """Write a module into a folder, which is made; several processes may write the same at once."""
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / f"{name}.py", text.encode())


def given_files(places: Iterable[str]) -> list[Path]:
    """Return the files of such modules in folders."""
    return [file for place in places if place for file in sorted(Path(place).glob(f"{_PREFIX}*.py"))]


def adopt(namespace: dict[str, Any], pickled: str) -> None:
    """Make what was given the content of a module, which calls this with its namespace."""
    module = namespace["__name__"]
    for name, given in pickle.loads(base64.b85decode(pickled)).items():
        namespace[name] = given
        for each in given.__mro__ if isinstance(given, type) else (given,):
            if each.__module__ == "__main__":  # so that others find it, such as a process that its tools run in
                each.__module__ = module
                namespace.setdefault(each.__qualname__, each)


def _with_file(code: CodeType) -> Any:
    return cloudpickle.CloudPickler.dispatch_table[CodeType](code.replace(co_filename=_file_of(code.co_filename)))


class _Pickler(cloudpickle.CloudPickler):
    """Copies functions with the file that a person can open: a cell's text is kept in one."""

    dispatch_table: ClassVar[Mapping[type, Any]] = ChainMap(
        {CodeType: _with_file},
        cloudpickle.CloudPickler.dispatch_table,
    )

    def reducer_override(self, given: Any) -> Any:
        """Say how something is copied.

        Raises:
            RecipeError: it is a class whose copy would be another one.
        """
        if isinstance(given, type(msgspec.Struct)) and (given.__module__ == "__main__" or "<locals>" in given.__qualname__):
            problem = f"class {given.__name__}, a msgspec.Struct of this program, would lose its fields in a copy"
            raise RecipeError("", problem, "make it a dataclass, or define it in a module beside the program")
        return super().reducer_override(given)


def _file_of(name: str) -> str:
    """Return the file of a code object; that of a cell is written now, under a name that follows from its text."""
    if Path(name).is_file() or not (lines := linecache.getlines(name)):
        return name
    text = "".join(lines)
    try:
        file = cache_folder() / "cells" / f"{hashlib.sha256(text.encode()).hexdigest()[:12]}.py"
        if not file.is_file():
            file.parent.mkdir(parents=True, exist_ok=True)
            write_whole(file, text.encode())
    except OSError:  # nobody can open the cell's text then; its name still says which it was
        return name
    return str(file)


def _pickled(objects: Mapping[str, Any]) -> bytes:
    """Pickle classes and functions by value, equally in each process that defines them equally."""
    written = io.BytesIO()
    _Pickler(written).dump(dict(objects))
    data = written.getvalue()
    trackers = list(dict.fromkeys(_TRACKER.findall(data)))
    plain = _TRACKER.sub(b"0" * 32, data)
    named = {each: hashlib.md5(plain + b"%d" % n, usedforsecurity=False).hexdigest().encode() for n, each in enumerate(trackers)}
    return _TRACKER.sub(lambda found: named[found[0]], data)


def _refuse_if_stuck(place: str, given: type | FunctionType) -> None:
    """Raise the refusal of what cannot be copied, which names what it refers to.

    Raises:
        RecipeError: it cannot be copied.
    """
    try:
        _pickled({given.__name__: given})
    except Exception as error:  # as above
        what = "class" if isinstance(given, type) else "function"
        used = next(
            (f"`{name}`, a {type(value).__name__} ({short(value)})" for name, value in _used_by(given) if _is_stuck(value)), None
        )
        uses = f"it uses {used}, which cannot leave this process" if used else describe_error(error)
        remedy = "make it where it is used, e.g. in __init__ of an environment, or once for a worker in share()"
        raise RecipeError(place, f"{what} {given.__name__} cannot be given to the run's processes: {uses}", remedy) from error


def _is_stuck(value: object) -> bool:
    try:
        _pickled({"value": value})
    except Exception:  # noqa: BLE001 - whatever it raises, it cannot be copied
        return True
    return False


def _used_by(given: type | FunctionType) -> Iterator[tuple[str, object]]:
    """Yield the names of globals and attributes that a class or a function uses, with their values."""
    waiting: list[Any] = [given]
    seen: set[int] = set()
    while waiting:
        each = waiting.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        if isinstance(each, type):
            for name, value in vars(each).items():
                function = getattr(value, "__func__", getattr(value, "function", value))
                if isinstance(function, FunctionType | type):
                    waiting.append(function)
                elif not name.startswith(("__", "_abc_")):
                    yield name, value
        elif isinstance(each, FunctionType):
            cells = zip(each.__code__.co_freevars, each.__closure__ or (), strict=True)
            used = [*((name, cell.cell_contents) for name, cell in cells), *_globals_of(each, each.__code__)]
            for name, value in used:
                if isinstance(value, FunctionType | type) and value.__module__ == "__main__":
                    waiting.append(value)
                elif not isinstance(value, ModuleType):
                    yield name, value


def _globals_of(function: FunctionType, code: CodeType) -> Iterator[tuple[str, object]]:
    yield from ((name, function.__globals__[name]) for name in code.co_names if name in function.__globals__)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _globals_of(function, constant)
