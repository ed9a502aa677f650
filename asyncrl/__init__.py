"""asyncrl: asynchronous off-policy reinforcement learning of language models that act over many turns and call tools.

Importing this package is cheap: it pulls in no torch, no ray and no vllm. What it offers to Python is imported when it is used;
see docs/start/python.md.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from asyncrl.core.process.torch_companions import hide_those_for_gpus

if TYPE_CHECKING:
    from asyncrl.api import sections
    from asyncrl.api.errors import NotThere, RunFailed, RunInterrupted
    from asyncrl.api.evaluation import Evaluation, evaluate
    from asyncrl.api.launching import launch, running
    from asyncrl.api.run import Run
    from asyncrl.api.sweeps import Sweep, SweepPoint, sweep
    from asyncrl.core.errors import AsyncRLError, RecipeError
    from asyncrl.core.recipe.schema import Recipe
    from asyncrl.run.measures.events import (
        EvaluationDone,
        NoteSaid,
        PhaseBegun,
        RunEnded,
        StepDone,
        VersionPublished,
        WarningSeen,
    )

__version__ = "0.1.0"

hide_those_for_gpus()

__all__ = [
    "AsyncRLError",
    "Evaluation",
    "EvaluationDone",
    "NotThere",
    "NoteSaid",
    "PhaseBegun",
    "Recipe",
    "RecipeError",
    "Run",
    "RunEnded",
    "RunFailed",
    "RunInterrupted",
    "StepDone",
    "Sweep",
    "SweepPoint",
    "VersionPublished",
    "WarningSeen",
    "evaluate",
    "launch",
    "running",
    "sections",
    "sweep",
]

_MODULE_OF = {
    "AsyncRLError": "asyncrl.core.errors",
    "Evaluation": "asyncrl.api.evaluation",
    "EvaluationDone": "asyncrl.run.measures.events",
    "NotThere": "asyncrl.api.errors",
    "NoteSaid": "asyncrl.run.measures.events",
    "PhaseBegun": "asyncrl.run.measures.events",
    "Recipe": "asyncrl.core.recipe.schema",
    "RecipeError": "asyncrl.core.errors",
    "Run": "asyncrl.api.run",
    "RunEnded": "asyncrl.run.measures.events",
    "RunFailed": "asyncrl.api.errors",
    "RunInterrupted": "asyncrl.api.errors",
    "StepDone": "asyncrl.run.measures.events",
    "Sweep": "asyncrl.api.sweeps",
    "SweepPoint": "asyncrl.api.sweeps",
    "VersionPublished": "asyncrl.run.measures.events",
    "WarningSeen": "asyncrl.run.measures.events",
    "evaluate": "asyncrl.api.evaluation",
    "launch": "asyncrl.api.launching",
    "running": "asyncrl.api.launching",
    "sweep": "asyncrl.api.sweeps",
}


def __getattr__(name: str) -> object:
    if name == "sections":
        return import_module("asyncrl.api.sections")
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'asyncrl' has no attribute {name!r}")
    return getattr(import_module(_MODULE_OF[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
