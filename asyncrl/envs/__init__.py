"""The plug-in API for tool environments, and the built-in environments.

What it offers is imported when it is used, so that the sandbox's supervisor process, which lies below this package, stays small.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from asyncrl.envs.base import Action, Environment, Fault, Observation, StepResult
    from asyncrl.envs.hosting.tool_messages import ToolError
    from asyncrl.envs.tool_marks import tool
    from asyncrl.envs.tools import ToolEnvironment

__all__ = ["Action", "Environment", "Fault", "Observation", "StepResult", "ToolEnvironment", "ToolError", "tool"]

_MODULE_OF = {
    "Action": "asyncrl.envs.base",
    "Environment": "asyncrl.envs.base",
    "Fault": "asyncrl.envs.base",
    "Observation": "asyncrl.envs.base",
    "StepResult": "asyncrl.envs.base",
    "ToolEnvironment": "asyncrl.envs.tools",
    "ToolError": "asyncrl.envs.hosting.tool_messages",
    "tool": "asyncrl.envs.tool_marks",
}


def __getattr__(name: str) -> object:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULE_OF[name]), name)
