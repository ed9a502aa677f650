"""A task: the problem that an environment is reset with."""

from typing import Any

import msgspec

from asyncrl.core.ids import TaskId


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """One problem for the model to solve. Tasks with equal ids are the same task.

    Attributes:
        id: unique within its source.
        prompt: what the user asks the model.
        data: everything else the environment needs, e.g. the expected answer. The model never sees it.
    """

    id: TaskId
    prompt: str
    data: dict[str, Any] = {}
