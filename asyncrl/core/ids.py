"""Identifiers and policy versions, as distinct types so that they cannot be mixed up."""

from typing import NewType

PolicyVersion = NewType("PolicyVersion", int)
"""A version of the weights: 0 are those that the run began with; each publication adds one."""

NOT_SAMPLED = PolicyVersion(-1)
"""The version recorded for tokens that no policy sampled (prompts, tool responses)."""

TaskId = NewType("TaskId", str)
GroupId = NewType("GroupId", int)
"""One group. It keeps its id when missing episodes are issued again; a task whose group expired is issued again as another."""

WorkerId = NewType("WorkerId", str)
