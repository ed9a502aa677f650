"""A task: the problem that an environment is reset with."""

from typing import Any

import msgspec

from asyncrl.core.ids import TaskId
from asyncrl.core.messages import Message, ToolSpec


class Task(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One problem for the model to solve. Tasks with equal ids are the same task.

    Attributes:
        id: unique within its source.
        prompt: what the user asks the model, or chat messages of which the last is the user's or a tool's; see
            :mod:`asyncrl.core.chat_prompt`.
        data: everything else the environment needs, e.g. the expected answer. The model never sees it.
        tools: tools that the model is told of, beside those of the environment.
        environment: which environment of a mixture plays it; empty where there is no mixture.
    """

    id: TaskId
    prompt: str | tuple[Message, ...]
    data: dict[str, Any] = {}
    environment: str = ""
    tools: tuple[ToolSpec, ...] = ()

    @property
    def question(self) -> str:
        """What the user asks the model: the text of the prompt, or of the user's last message."""
        if isinstance(self.prompt, str):
            return self.prompt
        return next((message.content for message in reversed(self.prompt) if message.role == "user"), "")

    def with_own_data(self) -> "Task":
        """Return the same task with data that may be changed without changing this one's."""
        return msgspec.structs.replace(self, data=_own(self.data))


def _own(value: Any) -> Any:
    """Return what JSON holds with dictionaries and lists of its own. It is made for each episode, so a text costs no call."""
    if isinstance(value, dict):
        return {name: _own(part) if isinstance(part, (dict, list)) else part for name, part in value.items()}
    return [_own(part) if isinstance(part, (dict, list)) else part for part in value]
