"""Chat messages and tool calls, in the shape Hugging Face chat templates take."""

from typing import Any, Literal

import msgspec


class ToolCall(msgspec.Struct, frozen=True):
    """A call the model made. ``arguments`` is the decoded JSON object."""

    name: str
    arguments: dict[str, Any]


class MalformedCall(msgspec.Struct, frozen=True):
    """Text the model marked as a tool call that its parser could not read, and why."""

    text: str
    problem: str


class Message(msgspec.Struct, frozen=True):
    """One chat message that the environment or the user wrote. The policy's own turns stay token ids and are never rebuilt."""

    role: Literal["system", "user", "tool"]
    content: str


class ToolSpec(msgspec.Struct, frozen=True):
    """A tool as the model is told of it. ``parameters`` is a JSON schema of type object."""

    name: str
    description: str
    parameters: dict[str, Any]

    def as_template_input(self) -> dict[str, Any]:
        """The dictionary that chat templates expect in ``tools=[...]``."""
        return {
            "type": "function",
            "function": {"name": self.name, "description": self.description, "parameters": self.parameters},
        }
