"""Identifiers and policy versions, as distinct types so that they cannot be mixed up."""

from typing import NewType

PolicyVersion = NewType("PolicyVersion", int)
"""Number of the weights: 0 are those that the run began with, and each publication adds one."""

NOT_SAMPLED = PolicyVersion(-1)
"""The version recorded for tokens that no policy sampled (prompts, tool responses)."""

TaskId = NewType("TaskId", str)
GroupId = NewType("GroupId", int)
"""Number of a group. It stays when missing episodes are issued again; the task of an expired group gets a new group."""

WorkerId = NewType("WorkerId", str)
