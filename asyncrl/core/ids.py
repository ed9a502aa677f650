"""Identifiers and the one clock's unit, as distinct types so that they cannot be mixed up."""

from typing import NewType

PolicyVersion = NewType("PolicyVersion", int)
"""The run's clock: 0 is the weights the run began with; each publish adds one."""

NOT_SAMPLED = PolicyVersion(-1)
"""The version recorded for tokens that no policy sampled (prompts, tool responses)."""

TaskId = NewType("TaskId", str)
GroupId = NewType("GroupId", int)
"""One issued ticket. A task that is issued again gets a new group id."""

WorkerId = NewType("WorkerId", str)
