"""The process that runs an answer's code, and what it does for the process that judges it.

What always holds: whatever the code may have patched here, all that leaves the process are messages of plain data, and numbers of
objects that it keeps.
"""

import builtins
import io
import operator
import sys
import types
from collections.abc import Callable
from typing import Any

from asyncrl.envs.code_judging.plain import Channel, Ended, pack, unpack

MOST_PRINTED = 1 << 20
"""Characters that an answer may print in one call."""


def serve(channel: Channel) -> None:
    """Answer requests until there are no more."""
    server = Served(channel)
    while True:
        try:
            server.answer(channel.receive())
        except Ended:
            return


class Served:
    """The objects of an answer that the judging process knows by their numbers."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._objects: list[Any] = []
        self._numbers: dict[int, int] = {}
        self._names: dict[str, Any] = {"__name__": "answer"}
        self._output = sys.stdout = io.StringIO()

    def answer(self, request: dict[str, Any]) -> None:
        """Do what is requested, and send what came of it."""
        arguments: list[Any] = []
        try:
            arguments = self._unpack(request["arguments"])
            before = [pack(each, self._export) for each in arguments]
            value = DONE_HERE[request["do"]](self, *arguments, **self._unpack(request["keywords"]))
            after = [pack(each, self._export) for each in arguments]
            changed = [[place, new] for place, (old, new) in enumerate(zip(before, after, strict=True)) if old != new]
            same = [
                place for place, each in enumerate(arguments) if each is value and isinstance(each, list | dict | set | bytearray)
            ]
            reply = {"value": pack(value, self._export), "changed": changed, "same": same[:1]}
        except Ended:
            raise
        except BaseException as error:  # noqa: BLE001 - it is the answer's, and told to the judging process
            reply = {"raised": self._raised(error)}
        try:
            self._channel.send({**reply, "printed": self._printed()})
        except (ValueError, RecursionError) as error:
            self._channel.send({"raised": self._raised(ValueError(str(error)))})

    def _printed(self) -> str:
        """Return what the answer has printed since it was asked last."""
        printed, self._output = self._output, io.StringIO()
        sys.stdout = self._output
        return printed.getvalue()[:MOST_PRINTED]

    def _unpack(self, message: Any) -> Any:
        return unpack(message, self._known)

    def _known(self, tag: str, held: Any) -> Any:
        match tag:
            case "object":
                return self._objects[held]
            case "builtin":
                return getattr(builtins, held)
            case "iterator":
                return iter(self._unpack(held))
        return self._callback(held)

    def _callback(self, number: int) -> Callable[..., Any]:
        def call(*arguments: Any, **keywords: Any) -> Any:
            given = {"arguments": pack(list(arguments), self._export), "keywords": pack(keywords, self._export)}
            self._channel.send({"call": number, **given, "printed": self._printed()})
            while "do" in (reply := self._channel.receive()):
                self.answer(reply)
            if "raised" in reply:
                raise RuntimeError(reply["raised"])
            return self._unpack(reply["value"])

        return call

    def _export(self, value: Any) -> dict[str, Any]:
        if isinstance(value, type) and issubclass(value, BaseException):
            parent = None if value.__module__ == "builtins" else self._export(value.__mro__[1])
            return {"exception": [self._number(value), str(value.__name__), parent]}
        return {"awaitable" if isinstance(value, types.CoroutineType) else "object": self._number(value)}

    def _number(self, value: Any) -> int:
        if id(value) not in self._numbers:
            self._numbers[id(value)] = len(self._objects)
            self._objects.append(value)
        return self._numbers[id(value)]

    def _raised(self, error: BaseException) -> Any:
        kind = type(error) if isinstance(error, Exception) else RuntimeError
        try:
            return [self._export(kind), pack(list(error.args), self._export)]
        except Exception:  # noqa: BLE001 - of the answer's own making
            return [self._export(kind), []]

    def run(self, code: str) -> dict[str, Any]:
        """Run the answer; returns the names that it has defined, but for modules."""
        exec(compile(code, "<answer>", "exec"), self._names)
        return {
            name: value
            for name, value in self._names.items()
            if not (name.startswith("__") or isinstance(value, types.ModuleType))
        }

    def evaluate(self, expression: str) -> Any:
        """The value of an expression in the answer's names."""
        return eval(compile(expression, "<test>", "eval"), self._names)


def _call(_: Served, function: Any, *arguments: Any, **keywords: Any) -> Any:
    return function(*arguments, **keywords)


def _get(_: Served, value: Any, name: str) -> Any:
    return getattr(value, name)


def _set(_: Served, value: Any, name: str, new: Any) -> None:
    setattr(value, name, new)


def _operate(_: Served, name: str, *values: Any) -> Any:
    return getattr(operator, name)(*values)


def _builtin(_: Served, name: str, *values: Any) -> Any:
    return getattr(builtins, name)(*values)


def _enter(_: Served, manager: Any) -> Any:
    return type(manager).__enter__(manager)


def _exit(_: Served, manager: Any) -> Any:
    return type(manager).__exit__(manager, None, None, None)


def _wait(_: Served, awaitable: Any) -> Any:
    import asyncio  # which takes a tenth of a second, and few answers need

    return asyncio.run(_awaited(awaitable))


async def _awaited(awaitable: Any) -> Any:
    return await awaitable


DONE_HERE: dict[str, Callable[..., Any]] = {
    "run": Served.run,
    "evaluate": Served.evaluate,
    "call": _call,
    "get": _get,
    "set": _set,
    "operate": _operate,
    "builtin": _builtin,
    "enter": _enter,
    "exit": _exit,
    "wait": _wait,
}
"""What may be requested. An answer's code may do all this by itself: it is not here that anything is guarded."""
