"""Chat messages and tool calls, in the shape Hugging Face chat templates take."""

from typing import Any, Literal

import msgspec


class ToolCall(msgspec.Struct, frozen=True):
    """A call the model made. ``arguments`` is the decoded JSON object."""

    name: str
    arguments: dict[str, Any]


class MalformedCall(msgspec.Struct, frozen=True):
    """Text that the model marked as a tool call but that the parser could not read, and why it could not."""

    text: str
    problem: str


class Message(msgspec.Struct, frozen=True):
    """One chat message that the environment or the user wrote. The policy's own turns stay token ids and are never rebuilt."""

    role: Literal["system", "user", "tool"]
    content: str


class ToolSpec(msgspec.Struct, frozen=True):
    """A tool as it is described to the model. ``parameters`` is a JSON schema of type object."""

    name: str
    description: str
    parameters: dict[str, Any]

    def as_template_input(self) -> dict[str, Any]:
        """Return the dictionary that chat templates expect in ``tools=[...]``."""
        return {
            "type": "function",
            "function": {"name": self.name, "description": self.description, "parameters": self.parameters},
        }
