"""A task: the problem that an environment is reset with."""

from typing import Any

import msgspec

from asyncrl.core.ids import TaskId
from asyncrl.core.messages import Message


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """One problem for the model to solve. Tasks with equal ids are the same task.

    Attributes:
        id: unique within its source.
        prompt: what the user asks the model, or chat messages of which the last is the user's (:mod:`asyncrl.core.chat_prompt`).
        data: everything else the environment needs, e.g. the expected answer. The model never sees it.
    """

    id: TaskId
    prompt: str | tuple[Message, ...]
    data: dict[str, Any] = {}

    @property
    def question(self) -> str:
        """What the user asks the model: the text of the prompt, or of its last message."""
        return self.prompt if isinstance(self.prompt, str) else self.prompt[-1].content
