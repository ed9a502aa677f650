"""Loads classes of the user's own, which a recipe names as ``module:Class``."""

import importlib
import inspect
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import chdir, contextmanager
from contextvars import ContextVar
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any, Literal

from asyncrl.core.errors import Interrupted, RecipeError
from asyncrl.core.process.standard_streams import standard_stream
from asyncrl.core.text import describe_error

_TAKEN = frozenset({"asyncrl", *sys.stdlib_module_names})
"""Names of modules that no file of the user's can have."""
_IMPORTED: ContextVar[str] = ContextVar("imported", default="")
"""The module of the user's own that is being imported; empty if there is none."""
_OURS = (f"{Path(__file__).parents[2]}{os.sep}", "<frozen ", importlib.__file__)
"""How the file names of our frames and of Python's import system begin."""


@contextmanager
def users_code(what: str, place: str, remedy: str) -> Iterator[None]:
    """Guard a call of the user's code while the recipe is read, so that the command can continue or say what is wrong.

    An exception becomes a ``RecipeError``. If the code changes the working directory, the old one is restored, since relative
    paths of the recipe begin there; standard streams that it closes are opened again. If it forks and the child process
    returns from it, the child ends here, because it would otherwise continue as a second run. Only ``os._exit`` can still end
    the command without a message.

    Args:
        what: the beginning of the message, which the error's text completes, e.g. ``make_tasks of 'a:B' raised``.
        place: key of the recipe to blame.

    Raises:
        RecipeError: the code raised something; a ``RecipeError`` of its own is passed on unchanged.
        Interrupted: a signal, such as Ctrl-C, stopped the command; it is passed on unchanged.
    """
    process, streams = os.getpid(), (sys.stdout, sys.stderr)
    try:
        with chdir("."):
            yield
    except (RecipeError, Interrupted):
        raise
    except BaseException as error:
        raise RecipeError(place, f"{what} {describe_error(error)}{_where(sys.exc_info()[2])}", remedy) from error
    finally:
        if os.getpid() != process:
            os._exit(1)
        sys.stdout, sys.stderr = (
            standard_stream(number) if stream is not None and stream.closed else stream
            for number, stream in enumerate(streams, start=1)
        )


def _where(raised: TracebackType | None) -> str:
    """Return the place to blame, as ``" (file:line)"``: of the user's files on the call stack, the innermost line of the one
    that was entered first. Empty if none of the files is the user's."""
    lines = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(raised)]
    users = [(file, line) for file, line in lines if not file.startswith(_OURS)]
    own = [f" ({file}:{line})" for file, line in users if file == users[0][0]]
    return own[-1] if own else ""


def load_class(name: str, place: str) -> type:
    """Load the class that ``name`` refers to. Its module is searched for on Python's path, and last in the current folder.

    Args:
        name: ``module:Class``.
        place: key of the recipe to blame, e.g. ``buffer.sampler.name``.

    Raises:
        RecipeError: there is no such class, or its module cannot be imported.
    """
    found: type = find_named(name, place, "class", inspect.isclass)
    return found


def find_named(name: str, place: str, kind: Literal["class", "function"], is_kind: Callable[[object], bool]) -> Any:
    """Find the class or the function that ``name`` refers to, as :func:`load_class` does."""
    module_name, _, own_name = name.partition(":")
    if not own_name.isidentifier() or not all(part.isidentifier() for part in module_name.split(".")):
        written = "Class" if kind == "class" else kind
        remedy = name_of_module(module_name) or f"write it as `module:{written}`"
        raise RecipeError(place, f"{name!r} does not name a {kind}", remedy)
    module = import_module(module_name, place, "put it into the folder you launch from", "fix the module")
    found = getattr(module, own_name, None)
    if not is_kind(found):
        problem = "does not exist" if found is None else f"is an object of type {type(found).__name__}, not a {kind}"
        own = sorted(key for key, value in vars(module).items() if is_kind(value) and value.__module__ == module_name)
        define = f"define it with `{'class' if kind == 'class' else 'def'}` in {module.__file__}"
        remedy = f"name one of {', '.join(own)}" if own else define
        raise RecipeError(place, f"{own_name!r} of module {module_name} {problem}", remedy)
    return found


def import_module(name: str, place: str, instead: str, mend: str) -> ModuleType:
    """Import a module of the user's own by its dotted name, from Python's path or the current folder.

    Args:
        instead: the remedy if there is no such module.
        mend: the remedy if it cannot be imported.

    Raises:
        RecipeError: there is no such module, or importing it failed.
    """
    here = os.getcwd()
    if here not in sys.path:
        sys.path.append(here)  # last, so that a file that happens to lie here hides no library
    with users_code(f"importing module {name!r} failed with", place, mend):
        begun = _IMPORTED.set(name)
        try:
            module = importlib.import_module(name)
        except ModuleNotFoundError as error:
            missing = error.name or ""
            if not f"{name}.".startswith(f"{missing}."):
                raise RecipeError(place, f"module {name} needs module {missing}, which is missing", "install it") from error
            problem = f"there is no module {name!r} on the path or in {here}"
            raise RecipeError(place, problem, name_of_module(name) or instead) from error
        finally:
            _IMPORTED.reset(begun)
    _refuse_hidden(module, Path(here), place)
    return module


def refuse_while_importing() -> None:
    """Refuse to start a run or an evaluation from a module that a run imports: it would be imported, and start one, for ever.

    Raises:
        RecipeError: a module of the user's own is being imported.
    """
    if name := _IMPORTED.get():
        problem = f"module {name}, which a recipe names, starts a run or an evaluation when it is imported"
        raise RecipeError(name, problem, "put the call under `if __name__ == '__main__':`, or into a file of its own")


def name_of_module(name: str) -> str:
    """Return the remedy for a file's name that stands in place of a module's; empty if it is none."""
    module = name.removesuffix(".py").strip("./").replace("/", ".")
    return "" if module == name else f"write the module's name, `{module}`, and not that of its file"


def _refuse_hidden(module: ModuleType, here: Path, place: str) -> None:
    """Refuse a module that was found although a file of the same name lies ``here``, which Python's own or ours hides.

    Raises:
        RecipeError: the module is of Python or of asyncrl, and there is such a file.
    """
    name = module.__name__
    if name.partition(".")[0] not in _TAKEN:
        return
    file = here.joinpath(*name.split("."))
    theirs = next((each for each in (file.with_suffix(".py"), file / "__init__.py") if each.is_file()), None)
    if theirs is not None and (module.__file__ is None or not theirs.samefile(module.__file__)):
        owner = "Python" if name.partition(".")[0] in sys.stdlib_module_names else "asyncrl"
        raise RecipeError(place, f"{theirs} is hidden by module {name!r} of {owner}", "give your module another name")
