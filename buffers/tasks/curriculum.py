"""Curricula: user-defined classes that change the weights of the task sources during training.

A curriculum is part of the task stream's state. Its answers may depend only on its options and on what it observed and restored,
not on a clock or on randomness of its own; otherwise a resumed run draws other tasks than an uninterrupted one.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar, cast

import msgspec

from asyncrl.core.errors import AsyncRLError, RecipeError
from asyncrl.core.plug_ins.plug_in import load_class, users_code
from asyncrl.core.recipe.tasks import CurriculumConfig

Answer = TypeVar("Answer")


class CurriculumBroken(AsyncRLError):
    """A curriculum raised an error or returned a wrong value.

    Args:
        name: name of the curriculum's class, ``module:Class``.
    """

    def __init__(self, name: str, problem: str, remedy: str) -> None:
        self.name, self.problem, self.remedy = name, problem, remedy
        super().__init__(f"curriculum {name}: {problem}; {remedy}")


class Curriculum(Protocol):
    """The methods that a curriculum must have.

    The class is called with a tuple of the sources' names, in the order of the recipe, and with ``tasks.curriculum.options`` as
    keyword arguments.
    """

    def weights(self) -> Sequence[float]:
        """Return the current weight of each source, in order: finite, not negative, not all 0."""

    def observe(self, source: str, rewards: Sequence[float]) -> None:
        """Take note of the rewards of one finished group of ``source``, whether or not the group will be trained."""

    def state(self) -> Mapping[str, Any]:
        """Return everything that changes over time, as plain values: numbers, text, and lists and dictionaries of them."""

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a state that :meth:`state` returned."""


class CheckedCurriculum:
    """Checks every answer of a curriculum, and raises :class:`CurriculumBroken` if anything goes wrong.

    Args:
        sources: number of sources; the curriculum must return as many weights.
    """

    def __init__(self, curriculum: Curriculum, sources: int) -> None:
        self._curriculum, self._sources = curriculum, sources
        self._name = f"{type(curriculum).__module__}:{type(curriculum).__qualname__}"

    def weights(self) -> list[float]:
        """Ask for the weights and check them."""
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
        """Return a copy of the curriculum's state."""
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
            # The class is user-defined, so it may raise anything.
            raise self._broken(f"{method}() raised {type(error).__name__}: {error}", "correct that class") from error

    def _broken(self, problem: str, remedy: str) -> CurriculumBroken:
        return CurriculumBroken(self._name, problem, remedy)


def load_curriculum(spec: CurriculumConfig, sources: Sequence[str]) -> Curriculum:
    """Load the curriculum that a recipe names, for these sources.

    Raises:
        RecipeError: the class does not exist, lacks a method or refuses its options, or its first weights or state are wrong.
    """
    place = "tasks.curriculum.name"
    loaded = load_class(spec.name, place)
    missing = [method for method in ("weights", "observe", "state", "restore") if not callable(getattr(loaded, method, None))]
    if missing:
        raise RecipeError(
            place, f"{spec.name} has no {', '.join(missing)}", "define the methods of asyncrl.buffers.tasks.curriculum.Curriculum"
        )
    problem = f"{spec.name} refuses sources {tuple(sources)} and options {spec.options}:"
    with users_code(problem, "tasks.curriculum.options", "give options that its constructor accepts"):
        curriculum = loaded(tuple(sources), **spec.options)
    checked = CheckedCurriculum(curriculum, len(sources))
    try:
        checked.weights()
        checked.state()
    except CurriculumBroken as error:
        raise RecipeError(place, f"{error.name}: {error.problem}", error.remedy) from error
    return cast(Curriculum, curriculum)
