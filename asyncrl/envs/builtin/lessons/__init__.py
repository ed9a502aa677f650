"""What the tiny model is warmed up on: for each built-in environment, scripts that solve its tasks, and a bad habit."""

from asyncrl.envs.builtin.lessons.base import Lessons, Script

__all__ = ["Lessons", "Script"]
