"""What the tiny model is warmed up on: for each environment, scripts that solve its tasks, and a bad habit."""

from asyncrl.envs.lessons.base import Lessons, Script, lessons_for

__all__ = ["Lessons", "Script", "lessons_for"]
