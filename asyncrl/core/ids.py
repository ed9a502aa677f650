"""Identifiers and policy versions, as distinct types so that they cannot be mixed up."""

from typing import NewType

PolicyVersion = NewType("PolicyVersion", int)
"""Number of a version of the weights. Version 0 is what the run began with; each publication adds one."""

NOT_SAMPLED = PolicyVersion(-1)
"""The version recorded for tokens that no policy sampled (prompts, tool responses)."""

TaskId = NewType("TaskId", str)
GroupId = NewType("GroupId", int)
"""Number of a group. A group keeps it when its missing episodes are issued again; the task of an expired group gets a new
group."""

WorkerId = NewType("WorkerId", str)
