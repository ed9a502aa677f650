"""Objects of an answer as the judging process sees them: each use of one is a request to the answer's process.

What always holds: an object of the answer's is never equal to plain data, and is never asked to compare or compute with it. So no
class of the answer's can say that it is what a test expects, nor be told what that is.
"""

import asyncio
import builtins
from collections.abc import Iterator
from itertools import count, islice
from typing import Any, TypeVar

from asyncrl.envs.code_judging.plain import Channel, Ended, pack, unpack

T = TypeVar("T")
_READABLE = ("__name__", "__qualname__", "__doc__")
"""The only names with two underscores that are looked up: others would be believed, such as an array's address in memory."""
_ANSWERED_BY_DATA = {
    name for kind in (str, bytes, set, float) for name in dir(kind) if name.startswith("is") or name in ("startswith", "endswith")
}
"""Yes-no questions to plain data, which no object in their place may answer."""

MOST_ITEMS = 1_000_000
"""Items of an iterator that tests hand to an answer."""


class Unjudgeable(BaseException):
    """The tests do what cannot be done with an answer in another process; the text says what, and with what remedy."""


class AnswersError(Exception):
    """The answer raised what is no exception of Python's."""


class Answer:
    """The process of an answer."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._callbacks: list[Any] = []
        self._exceptions: dict[int, type[BaseException]] = {}
        self._objects: dict[int, Remote] = {}

    def request(self, do: str, *arguments: Any, **keywords: Any) -> Any:
        """Have something done (:data:`~asyncrl.envs.code_judging.answer.DONE_HERE`); returns its value, or raises its exception.

        Lists, dictionaries and sets among the arguments that the answer has changed are changed here, too.

        Raises:
            Ended: the process has ended.
            Unjudgeable: an argument can be no argument of an answer in another process.
        """
        request = {"do": do, "arguments": pack(list(arguments), self._reference), "keywords": pack(keywords, self._reference)}
        self._channel.send(request)
        while "call" in (reply := self._receive()):
            self._channel.send(self._called_back(reply))
        if "raised" in reply:
            kind, given = reply["raised"]
            self._raise(kind, given, at_the_end=(do, *arguments[:1]) == ("builtin", "next"))
        for place, new in reply.get("changed", ()):
            _change(arguments[place], self._unpack(new))
        same = reply.get("same")
        return arguments[same[0]] if same else self._unpack(reply.get("value"))

    def _receive(self) -> dict[str, Any]:
        reply = self._channel.receive()
        if not isinstance(reply, dict):
            raise Ended
        print(reply.get("printed", ""), end="")  # noqa: T201 - for tests that look at what an answer prints
        return reply

    def _unpack(self, message: Any) -> Any:
        try:
            return unpack(message, self._referred)
        except RecursionError as error:
            raise Ended from error

    def _reference(self, value: Any) -> dict[str, Any]:
        if isinstance(value, Remote):
            return {"object": number_of(value)}
        known = [number for number, kind in self._exceptions.items() if kind is value]
        if known:
            return {"object": known[0]}
        name = getattr(value, "__name__", None)
        if isinstance(name, str) and getattr(builtins, name, None) is value:
            return {"builtin": name}
        if isinstance(value, Iterator):
            return {"iterator": [pack(each, self._reference) for each in islice(value, MOST_ITEMS)]}
        if callable(value):
            self._callbacks.append(value)
            return {"callback": len(self._callbacks) - 1}
        kind = type(value).__name__
        raise Unjudgeable(
            f"they hand an object of type {kind} to the answer; hand over plain data, functions, or what it returned"
        )

    def _referred(self, tag: str, held: Any) -> Any:
        try:
            match tag:
                case "object":
                    return self._objects.setdefault(int(held), Remote(self, int(held)))
                case "awaitable":
                    return self._wait(Remote(self, int(held)))
                case "exception":
                    return self._exception(*held)
        except (TypeError, ValueError) as error:
            raise Ended from error
        raise Ended

    async def _wait(self, awaitable: "Remote") -> Any:
        await asyncio.sleep(0)
        return self.request("wait", awaitable)

    def _exception(self, number: int, name: str, parent: Any) -> type[BaseException]:
        """A class here for an exception of the answer's, so that tests can catch it; exceptions of Python's are what they are."""
        if parent is None:
            found = getattr(builtins, name, None)
            return found if isinstance(found, type) and issubclass(found, Exception) else AnswersError
        if number not in self._exceptions:
            above = self._unpack(parent)
            base = above if isinstance(above, type) and issubclass(above, Exception) else AnswersError
            self._exceptions[number] = type(name, (base,), {})
        return self._exceptions[number]

    def _raise(self, kind: Any, arguments: Any, at_the_end: bool) -> None:
        """Raise what the answer raised.

        ``StopIteration`` may come from an iterator only: from any other call, it would end a loop of the tests, such as
        ``all(map(...))``, before they have looked at anything.
        """
        found, given = self._unpack(kind), self._unpack(arguments)
        if not (isinstance(found, type) and issubclass(found, Exception) and isinstance(given, list)):
            raise Ended
        try:
            raised = found(*given)
        except TypeError:  # some of Python's need arguments of their own
            raised = AnswersError(found.__name__)
        if isinstance(raised, StopIteration) and not at_the_end:
            raised = RuntimeError(f"the answer raised {found.__name__}")  # as in a generator
        raise raised from None

    def _called_back(self, call: dict[str, Any]) -> dict[str, Any]:
        """Call a function of the tests' that was handed to the answer."""
        try:
            function, arguments, keywords = (
                self._callbacks[call["call"]],
                *map(self._unpack, (call["arguments"], call["keywords"])),
            )
            return {"value": pack(function(*arguments, **keywords), self._reference)}
        except (Unjudgeable, Exception) as error:  # noqa: BLE001 - of the tests' function, for the answer to see
            return {"raised": f"{type(error).__name__}: {error}"}


class Remote:
    """An object of the answer's."""

    __slots__ = ("_Remote__answer", "_Remote__number")

    def __init__(self, answer: Answer, number: int) -> None:
        object.__setattr__(self, "_Remote__answer", answer)
        object.__setattr__(self, "_Remote__number", number)

    def __getattr__(self, name: str) -> Any:
        if (name.startswith("__") and name not in _READABLE) or name in _ANSWERED_BY_DATA:
            raise AttributeError(f"{name!r} of an object that is no plain data")
        return _request(self, "get", self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        _request(self, "set", self, name, value)

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """Return what the answer's function returns."""
        return _request(self, "call", self, *arguments, **keywords)

    def __getitem__(self, key: Any) -> Any:
        return _request(self, "operate", "getitem", self, key)

    def __setitem__(self, key: Any, value: Any) -> None:
        _request(self, "operate", "setitem", self, key, value)

    def __delitem__(self, key: Any) -> None:
        _request(self, "operate", "delitem", self, key)

    def __iter__(self) -> Iterator[Any]:
        iterator = _request(self, "builtin", "iter", self)
        for items in count():
            try:
                item = _request(self, "builtin", "next", iterator)
            except StopIteration:
                self._check_length(items)
                return
            yield item

    def _check_length(self, items: int) -> None:
        """See that an object holds as many items as it says: one that says three and hands over none would pass many a test."""
        try:
            said = len(self)
        except (TypeError, AttributeError, NotImplementedError):  # it has no length
            return
        if said != items:
            raise TypeError(f"an object of the answer's has length {said} and {items} items")

    def __next__(self) -> Any:
        return _request(self, "builtin", "next", self)

    def __contains__(self, value: Any) -> bool:
        return any(each == value for each in self)

    def __len__(self) -> int:
        return _plain(int, _request(self, "builtin", "len", self))

    def __bool__(self) -> bool:
        return _plain(bool, _request(self, "builtin", "bool", self))

    def __int__(self) -> int:
        return _plain(int, _request(self, "builtin", "int", self))

    def __float__(self) -> float:
        return _plain(float, _request(self, "builtin", "float", self))

    def __str__(self) -> str:
        return _plain(str, _request(self, "builtin", "str", self))

    def __repr__(self) -> str:
        return _plain(str, _request(self, "builtin", "repr", self))

    def __hash__(self) -> int:
        return _plain(int, _request(self, "builtin", "hash", self))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Remote) and _plain(bool, _request(self, "operate", "eq", self, other))

    def __ne__(self, other: object) -> bool:
        return not isinstance(other, Remote) or _plain(bool, _request(self, "operate", "ne", self, other))

    def __instancecheck__(self, instance: object) -> bool:
        return isinstance(instance, Remote) and _plain(bool, _request(self, "builtin", "isinstance", instance, self))

    def __subclasscheck__(self, other: object) -> bool:
        return isinstance(other, Remote) and _plain(bool, _request(self, "builtin", "issubclass", other, self))

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[type, ...]:
        raise Unjudgeable("they derive a class from one of the answer's; use its objects instead")

    def __enter__(self) -> Any:
        return _request(self, "enter", self)

    def __exit__(self, *_: object) -> None:
        _request(self, "exit", self)


def _request(remote: Remote, *arguments: Any, **keywords: Any) -> Any:
    return object.__getattribute__(remote, "_Remote__answer").request(*arguments, **keywords)


def number_of(remote: Remote) -> int:
    """The number by which the answer's process knows an object."""
    return int(object.__getattribute__(remote, "_Remote__number"))


def _between_objects(name: str) -> Any:
    """An operator of two objects of the answer's. Plain data is never computed with: it would be told to the answer."""

    def operate(self: Remote, other: object) -> Any:
        return _request(self, "operate", name, self, other) if isinstance(other, Remote) else NotImplemented

    return operate


def _alone(name: str) -> Any:
    return lambda self: _request(self, "operate", name, self)


for _name in ("neg", "pos", "abs", "invert"):
    setattr(Remote, f"__{_name}__", _alone(_name))
for _name in ("lt", "le", "gt", "ge", "add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and_", "or_", "xor"):
    setattr(Remote, f"__{_name.rstrip('_')}__", _between_objects(_name))


def _plain(kind: type[T], value: Any) -> T:
    """A value that the answer's process says is of a built-in type.

    Raises:
        TypeError: it is not.
    """
    if type(value) is not kind:
        raise TypeError(f"an object of the answer's gave {type(value).__name__} where Python wants {kind.__name__}")
    return value


def _change(mine: Any, new: Any) -> None:
    """Make ``mine`` what the answer has made of it."""
    if type(mine) is not type(new):
        return
    if isinstance(mine, list | bytearray):
        mine[:] = new
    elif type(mine).__module__ == "numpy" and mine.shape == new.shape != ():
        mine[...] = new
    elif isinstance(mine, dict | set):
        mine.clear()
        mine.update(new)
