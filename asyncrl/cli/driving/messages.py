"""The requests of a program to the process that drives its run, evaluation or sweep, and its answers."""

import msgspec

from asyncrl.run.evaluation.request import EvaluationRequest


class LaunchRequest(msgspec.Struct, frozen=True, tag=True):
    """Launch a recipe, given by path or name, with changes; or go on with the run in the folder ``resume``.

    Attributes:
        start: where relative paths of a resumed run's recipe begin; None for where it was launched.
        code: folder of modules that the program made for the run.
        tags, note, named: labels of the run; ``named`` is the recipe as the user named it, empty for one that a program made.
        detached: the run goes on without the process that asks for it.
        quiet: show only warnings, and how the run ended.
    """

    recipe: str | None
    overrides: tuple[str, ...] = ()
    resume: str | None = None
    start: str | None = None
    code: str | None = None
    named: str = ""
    tags: tuple[str, ...] = ()
    note: str = ""
    detached: bool = False
    quiet: bool = False


class EvaluateRequest(msgspec.Struct, frozen=True, tag=True):
    """Evaluate models."""

    asked: EvaluationRequest


class SweepRequest(msgspec.Struct, frozen=True, tag=True):
    """Run settings of a recipe beside each other, as ``asyncrl sweep`` does; or what is missing of the sweep ``resume``.

    Attributes:
        overrides: the values of keys, and changes that hold for all settings.
        seeds: how often each setting is run; None if that was not said.
        parallel: so many runs side by side.
    """

    recipe: str | None = None
    overrides: tuple[str, ...] = ()
    seeds: int | None = None
    parallel: int = 1
    resume: str | None = None


Request = LaunchRequest | EvaluateRequest | SweepRequest


class Began(msgspec.Struct, frozen=True, tag=True):
    """The request was accepted; everything that is left behind will be in this folder.

    Attributes:
        events: the size of the run's ``events.jsonl``, in bytes: what an earlier attempt left there.
    """

    folder: str
    events: int = 0


class Refused(msgspec.Struct, frozen=True, tag=True):
    """The request was refused with a ``RecipeError``, whose further problems are its notes; nothing was started."""

    place: str
    problem: str
    remedy: str
    notes: tuple[str, ...] = ()


Answer = Began | Refused
