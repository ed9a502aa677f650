"""The tests of a program as data sets write them down: our own, those of APPS and TACO, and those of LiveCodeBench.

What always holds: a test that is read is run, what cannot be read is refused, and nothing that a data set has pickled is run by
reading it.
"""

import base64
import io
import json
import keyword
import pickle
import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NoReturn

import msgspec

MOST_BYTES = 2**29
"""The most that packed tests unpack to: a few kilobytes may unpack to more than this machine's memory."""
SHAPES = (
    'write {"call": ..., "returns": ...} or {"stdin": ..., "stdout": ...}, or name the column `input_output` of APPS or TACO, or '
    "`public_test_cases` or `private_test_cases` of LiveCodeBench"
)

_INTEGER = re.compile(r"0|-?[1-9][0-9]{0,99}")
"""How JSON's writers write integers: texts such as "007" were texts before."""

IMPORTED = """
def import_all():
    import bisect, builtins, collections, copy, datetime, fractions, functools, heapq, itertools, json, math, operator
    import random, re, statistics, string, sys, time, typing
    shown = (
        typing, operator, functools, itertools, statistics, random, math, copy, bisect, heapq, collections, datetime, re, string
    )
    for module in (*shown, fractions, json, sys, time):
        vars(builtins).setdefault(module.__name__, module)
    for module in shown:
        for name in getattr(module, "__all__", None) or [each for each in vars(module) if not each.startswith("_")]:
            vars(builtins).setdefault(name, getattr(module, name))

    sys.setrecursionlimit(50_000)

import_all()
del import_all
"""
"""Makes known what the judges of these data sets import for a function: their tasks write ``List[int]`` without an import.
They let it call itself as deeply, too."""


class CallTest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An expression in the names of the program, such as ``add(1, 2)``, and its value as JSON has it."""

    call: str
    returns: Any


class OutputTest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the program reads, and what it must print. White space at the ends of lines does not count."""

    stdin: str
    stdout: str


class FunctionTest(msgspec.Struct, frozen=True):
    """A call of a function, or of a method of class ``Solution``, and the values of which it must return one."""

    call: str
    accepted: tuple[Any, ...]


class LooseOutputTest(msgspec.Struct, frozen=True):
    """What the program reads, and what it must print, but for white space, blank lines and the last digits of fractions."""

    stdin: str
    stdout: str


CodeTest = CallTest | OutputTest | FunctionTest | LooseOutputTest


class _InputOutput(msgspec.Struct, frozen=True):
    """Tests of APPS and TACO: arguments of a function, or else what a program reads, as a text or its lines."""

    inputs: list[Any]
    outputs: list[Any]
    fn_name: str | None = None


class _Case(msgspec.Struct, frozen=True):
    """A test of LiveCodeBench: what a program reads, or JSON of a function's arguments, one a line."""

    input: str
    output: str
    testtype: Literal["stdin", "functional"]


def read_tests(found: Any, metadata: Any) -> list[CodeTest]:
    """Read the tests of a task.

    Args:
        found: the tests; text is JSON, or the packed JSON of LiveCodeBench.
        metadata: what LiveCodeBench says beside its tests, or None.

    Raises:
        ValueError, TypeError, RecursionError: they cannot be read; says why.
    """
    if isinstance(found, str):
        found = _json_in(found)
    if isinstance(found, Mapping):
        return _of_input_output(msgspec.convert(found, _InputOutput))
    return [_read(test, metadata) for test in found]


def _json_in(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        try:
            packed = _unpacked(base64.b64decode(text, validate=True))
            return json.loads(_Plain(io.BytesIO(packed)).load())
        except UnpackedTooLarge:
            raise
        except Exception:  # noqa: BLE001 - unpickling may raise anything
            raise ValueError(f"the text is no JSON: {error}") from error


class UnpackedTooLarge(ValueError):
    """A text unpacks to more than tests are."""


def _unpacked(packed: bytes) -> bytes:
    unpacking = zlib.decompressobj()
    found = unpacking.decompress(packed, MOST_BYTES)
    if unpacking.unconsumed_tail:
        raise UnpackedTooLarge(f"it unpacks to more than {MOST_BYTES >> 20} MiB")
    return found


class _Plain(pickle.Unpickler):
    """Reads pickled texts and numbers, and nothing that has a name."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise pickle.UnpicklingError(f"{module}.{name} is no text")


def _read(test: Any, metadata: Any) -> CodeTest:
    if "testtype" in test:
        return _of_case(msgspec.convert(test, _Case), metadata)
    kind: type[CallTest | OutputTest] = CallTest if "call" in test else OutputTest
    return msgspec.convert(test, kind)


def _of_input_output(given: _InputOutput) -> list[CodeTest]:
    if len(given.inputs) != len(given.outputs):
        raise ValueError(f"it has {len(given.inputs)} inputs and {len(given.outputs)} outputs")
    pairs = zip(given.inputs, given.outputs, strict=True)
    if not given.fn_name:
        return [LooseOutputTest(_joined(read), _joined(printed)) for read, printed in pairs]
    tests: list[CodeTest] = []
    for arguments, returned in pairs:
        alone = [returned[0]] if isinstance(returned, list) and len(returned) == 1 else []  # which they often are in a list
        tests.append(FunctionTest(_call(given.fn_name, arguments, _with_numbers_as_keys), (returned, *alone)))
    return tests


def _of_case(case: _Case, metadata: Any) -> CodeTest:
    if case.testtype == "stdin":
        return LooseOutputTest(case.input, case.output)
    said = json.loads(metadata) if isinstance(metadata, str) else metadata
    function = said.get("func_name") if isinstance(said, Mapping) else None
    if not (function and isinstance(function, str)):
        raise ValueError("it calls a function that data['metadata'] does not name as `func_name`")
    arguments = [json.loads(line) for line in case.input.split("\n") if line.strip()]
    return FunctionTest(_call(function, arguments, _as_written), (json.loads(case.output),))


def _joined(lines: Any) -> str:
    return "\n".join(map(str, lines)) if isinstance(lines, Sequence) and not isinstance(lines, str) else str(lines)


def _as_written(argument: Any) -> str:
    """Return an expression of an argument."""
    return f"__import__('json').loads({json.dumps(argument)!r})"


def _with_numbers_as_keys(argument: Any) -> str:
    """Return an expression of an argument whose keys were numbers before it was written as JSON, which has texts alone."""
    written = _as_written(argument)
    if isinstance(argument, Mapping) and argument and all(_INTEGER.fullmatch(key) for key in argument):
        return f"{{int(key): value for key, value in {written}.items()}}"
    return written


def _call(function: str, arguments: Any, written: Callable[[Any], str]) -> str:
    """Return an expression that calls the method of class ``Solution``, or else the function, with arguments of plain data."""
    if not (function.isidentifier() and not keyword.iskeyword(function)):
        raise ValueError(f"{function!r} is no name of a function")
    if not isinstance(arguments, list):
        raise TypeError(f"its arguments are no list, but {type(arguments).__name__}")
    is_method = f"hasattr(globals().get('Solution'), {function!r})"  # first, as what it imports may be called alike: math.comb
    found = f"({function} if {function!r} in globals() and not {is_method} else Solution().{function})"
    return f"{found}({', '.join(map(written, arguments))})"
