"""A class of the user's own that moves the weights of the task sources while training.

It is part of the stream's state: what it answers must follow from its options, what it observed and what it restored, and from
nothing else (no clock, no randomness of its own), or a resumed run draws other tasks than an uninterrupted one.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar, cast

import msgspec

from asyncrl.core.errors import AsyncRLError, RecipeError
from asyncrl.core.plug_in import load_class, users_code
from asyncrl.core.recipe import schema

Answer = TypeVar("Answer")


class CurriculumBroken(AsyncRLError):
    """A curriculum raised, or answered what makes no sense.

    Args:
        name: of its class, ``module:Class``.
        problem: what is wrong, with the value seen.
        remedy: what would be right.
    """

    def __init__(self, name: str, problem: str, remedy: str) -> None:
        self.name, self.problem, self.remedy = name, problem, remedy
        super().__init__(f"curriculum {name}: {problem}; {remedy}")

    def __reduce__(self) -> tuple[type, tuple[str, str, str]]:
        return type(self), (self.name, self.problem, self.remedy)


class Curriculum(Protocol):
    """What a curriculum must have.

    Its class is called with the names of the sources, a tuple in the order of the recipe, and with
    ``tasks.curriculum.options`` as keyword arguments.
    """

    def weights(self) -> Sequence[float]:
        """How often tasks are to be drawn now, one number for each source: finite, not negative, not all 0."""
        ...

    def observe(self, source: str, rewards: Sequence[float]) -> None:
        """The rewards of one finished group of a task of ``source``, whether or not it will be trained."""
        ...

    def state(self) -> Mapping[str, Any]:
        """All that changes, as plain values: numbers, text, lists and dictionaries of them."""
        ...

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from what :meth:`state` returned."""
        ...


class CheckedCurriculum:
    """A curriculum whose every answer is checked: whatever goes wrong in it is a :class:`CurriculumBroken` that names its class.

    Args:
        curriculum: the user's.
        sources: how many weights it must answer.
    """

    def __init__(self, curriculum: Curriculum, sources: int) -> None:
        self._curriculum, self._sources = curriculum, sources
        self._name = f"{type(curriculum).__module__}:{type(curriculum).__qualname__}"

    def weights(self) -> list[float]:
        """One finite weight for each source, none negative, not all 0."""
        answer = self._call("weights", lambda: list(self._curriculum.weights()))
        if len(answer) != self._sources:
            raise self._broken(f"weights() returned {len(answer)} weights for {self._sources} sources", "return one for each")
        weights = self._call("weights", lambda: [float(weight) for weight in answer])
        if not all(math.isfinite(weight) and weight >= 0 for weight in weights):
            raise self._broken(f"weights() returned {weights}", "return finite numbers that are not negative")
        if not any(weights):
            raise self._broken("weights() returned 0 for every source", "leave at least one source above 0")
        return weights

    def observe(self, source: str, rewards: Sequence[float]) -> None:
        """Pass on the rewards of a finished group."""
        self._call("observe", lambda: self._curriculum.observe(source, tuple(rewards)))

    def state(self) -> dict[str, Any]:
        """Its state, copied: what it does from now on does not change what was returned."""
        state = self._call("state", self._curriculum.state)
        try:
            return msgspec.msgpack.decode(msgspec.msgpack.encode(state), type=dict[str, Any])
        except (TypeError, OverflowError, msgspec.DecodeError) as error:
            remedy = "return a dictionary of numbers, text, lists and dictionaries"
            raise self._broken(f"state() returned what cannot be stored ({error})", remedy) from error

    def restore(self, state: Mapping[str, Any]) -> None:
        """Pass on a state to go on from."""
        self._call("restore", lambda: self._curriculum.restore(state))

    def _call(self, method: str, call: Callable[[], Answer]) -> Answer:
        try:
            return call()
        except Exception as error:
            # The class is the user's: whatever it raises is theirs to mend.
            raise self._broken(f"{method}() raised {type(error).__name__}: {error}", "mend that class") from error

    def _broken(self, problem: str, remedy: str) -> CurriculumBroken:
        return CurriculumBroken(self._name, problem, remedy)


def load_curriculum(spec: schema.CurriculumConfig, sources: Sequence[str]) -> Curriculum:
    """The curriculum that a recipe names, with weights for these sources.

    Raises:
        RecipeError: there is no such class, it lacks a method, refuses its options, or its first weights or state make no sense.
    """
    place = "tasks.curriculum.name"
    loaded = load_class(spec.name, place)
    missing = [method for method in ("weights", "observe", "state", "restore") if not callable(getattr(loaded, method, None))]
    if missing:
        raise RecipeError(place, f"{spec.name} has no {', '.join(missing)}", "define what buffers.curriculum.Curriculum asks for")
    problem = f"{spec.name} refuses sources {tuple(sources)} and options {spec.options}:"
    with users_code(problem, "tasks.curriculum.options", "use what its constructor takes"):
        curriculum = loaded(tuple(sources), **spec.options)
    checked = CheckedCurriculum(curriculum, len(sources))
    try:
        checked.weights()
        checked.state()
    except CurriculumBroken as error:
        raise RecipeError(place, f"{error.name}: {error.problem}", error.remedy) from error
    return cast(Curriculum, curriculum)
