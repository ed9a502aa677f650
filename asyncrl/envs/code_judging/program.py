"""The program that judges an answer inside the sandbox: it forks the process that runs the answer, and only then reads the tests.

What always holds: this process runs no code of the answer's; the other has neither the tests, nor what they expect, nor this
process's standard input and output.
"""

import builtins
import ctypes
import json
import os
import sys
import types
from typing import Any

from asyncrl.envs.code_judging.answer import serve
from asyncrl.envs.code_judging.plain import Channel, Ended
from asyncrl.envs.code_judging.remote import Answer, Unjudgeable
from asyncrl.envs.code_judging.tests_code import why_no_test

_DUMPABLE = 4
_LEAST, _MOST = -(2**63), 2**64 - 1


def main() -> None:
    """Judge what is described on standard input; print the verdict."""
    channel = _start()
    ctypes.CDLL(None).prctl(_DUMPABLE, 0, 0, 0, 0)  # so that no process of this user can look into this one
    asked = json.load(sys.stdin, parse_int=_as_in_tasks)
    verdict = os.fdopen(os.dup(1), "w")
    _silence(1, 2)

    def tell(**what: Any) -> None:
        verdict.write(json.dumps(what) + "\n")
        verdict.flush()

    answer = Answer(channel)
    try:
        tests = None if asked["tests"] is None else _compiled(asked["tests"], "exec")
        if asked["tests"] is not None and (problem := why_no_test(asked["tests"])):
            raise Unjudgeable(problem)
        for call, _ in asked["calls"]:
            _compiled(call, "eval")
        answer.request("run", asked["before"])
        names = _under_test(answer.request("run", asked["code"]))
        if tests is not None:
            tell(passed=_passes(tests, names))
        for call, accepted in asked["calls"]:
            tell(passed=_returns(answer, call, accepted))
    except Unjudgeable as error:
        tell(problem=str(error))
    except (Ended, Exception):  # noqa: BLE001 - the answer's, which has ended or raised
        pass
    os._exit(0)


def _compiled(code: str, kind: str) -> types.CodeType:
    try:
        return compile(code, "<tests>", kind)
    except (SyntaxError, ValueError) as error:
        raise Unjudgeable(f"{code!r:.200} is no Python: {error}") from error


def _under_test(names: Any) -> dict[str, Any]:
    """The names of the answer that tests see. None is taken for one of Python's own, such as ``abs``, by which tests judge."""
    return {name: value for name, value in dict(names).items() if not (name.startswith("__") or hasattr(builtins, name))}


def _start() -> Channel:
    """Fork the process of the answer; returns the channel to it."""
    (from_here, to_answer), (from_answer, to_here) = os.pipe(), os.pipe()
    if os.fork() == 0:
        os.close(to_answer)
        os.close(from_answer)
        _silence(0, 1, 2)
        sys.stdin = open(0)  # noqa: SIM115 - it stays open
        serve(Channel(from_here, to_here))
        os._exit(0)
    os.close(from_here)
    os.close(to_here)
    return Channel(from_answer, to_answer)


def _silence(*descriptors: int) -> None:
    """Put the device that swallows everything in the place of standard streams."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for each in descriptors:
        os.dup2(nothing, each)
    os.close(nothing)


def _passes(code: types.CodeType, names: dict[str, Any]) -> bool:
    try:
        exec(code, {**names, "__name__": "tests"})
    except Unjudgeable:
        raise
    except BaseException:  # noqa: BLE001 - a test that fails may raise anything, and an answer may end
        return False
    return True


def _returns(answer: Answer, call: str, accepted: list[Any]) -> bool:
    try:
        given = json.dumps(answer.request("evaluate", call))
        return json.loads(given, parse_int=_as_in_tasks) in accepted
    except (Ended, Exception):  # noqa: BLE001 - the answer's, or a value that JSON does not have
        return False


def _as_in_tasks(digits: str) -> int | str:
    """Return an integer of JSON as tasks have it: one of more than 64 bits is a text there."""
    value = int(digits)
    return value if _LEAST <= value <= _MOST else digits
