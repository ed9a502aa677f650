"""The plug-in API for tool environments, and the built-in environments."""

from asyncrl.envs.base import Action, Environment, Fault, Observation, StepResult
from asyncrl.envs.tools import ToolEnvironment, ToolError, tool

__all__ = ["Action", "Environment", "Fault", "Observation", "StepResult", "ToolEnvironment", "ToolError", "tool"]
