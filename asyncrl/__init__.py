"""asyncrl: asynchronous off-policy reinforcement learning of language models that act over many turns and call tools.

Importing this package is cheap: it pulls in no torch, no ray and no vllm. What it offers to Python is imported when it is used;
see docs/python.md.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from asyncrl.api.errors import NotThere, RunFailed, RunInterrupted
    from asyncrl.api.evaluation import Evaluation, evaluate
    from asyncrl.api.run import Run, launch
    from asyncrl.core.errors import AsyncRLError, RecipeError

__version__ = "0.1.0"

__all__ = [
    "AsyncRLError",
    "Evaluation",
    "NotThere",
    "RecipeError",
    "Run",
    "RunFailed",
    "RunInterrupted",
    "evaluate",
    "launch",
]

_MODULE_OF = {
    "AsyncRLError": "asyncrl.core.errors",
    "Evaluation": "asyncrl.api.evaluation",
    "NotThere": "asyncrl.api.errors",
    "RecipeError": "asyncrl.core.errors",
    "Run": "asyncrl.api.run",
    "RunFailed": "asyncrl.api.errors",
    "RunInterrupted": "asyncrl.api.errors",
    "evaluate": "asyncrl.api.evaluation",
    "launch": "asyncrl.api.run",
}


def __getattr__(name: str) -> object:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'asyncrl' has no attribute {name!r}")
    return getattr(import_module(_MODULE_OF[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
