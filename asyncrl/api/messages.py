"""The requests of a program to the process that drives its run, and its answers."""

import msgspec

from asyncrl.run.evaluation.request import EvaluationRequest


class LaunchRequest(msgspec.Struct, frozen=True, tag=True):
    """Launch a recipe, given by path or name, with changes; or go on with the run in the folder ``resume``."""

    recipe: str | None
    overrides: tuple[str, ...] = ()
    resume: str | None = None


class EvaluateRequest(msgspec.Struct, frozen=True, tag=True):
    """Evaluate models."""

    asked: EvaluationRequest


Request = LaunchRequest | EvaluateRequest


class Began(msgspec.Struct, frozen=True, tag=True):
    """The request was accepted; everything that is left behind will be in this folder."""

    folder: str


class Refused(msgspec.Struct, frozen=True, tag=True):
    """The request was refused with a ``RecipeError``, whose further problems are its notes; nothing was started."""

    place: str
    problem: str
    remedy: str
    notes: tuple[str, ...] = ()


Answer = Began | Refused
