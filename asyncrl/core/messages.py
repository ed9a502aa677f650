"""Chat messages and tool calls, in the shape Hugging Face chat templates take."""

from enum import StrEnum
from typing import Any, Literal

import msgspec


class ToolCall(msgspec.Struct, frozen=True):
    """A call of a tool.

    Attributes:
        arguments: the decoded JSON object.
        id: what its answer refers to, in a conversation that others wrote; empty for a call that the model made here.
    """

    name: str
    arguments: dict[str, Any]
    id: str = ""


class MalformedCall(msgspec.Struct, frozen=True):
    """Text that the model marked as a tool call but that the parser could not read, and why it could not."""

    text: str
    problem: str


class CallOutcome(StrEnum):
    """What became of a tool call."""

    OK = "ok"
    ERROR = "error"
    """The tool raised."""
    TIMEOUT = "timeout"
    """The tool passed its deadline."""
    MALFORMED = "malformed"
    """The call could not be parsed, named no known tool, or its arguments did not fit; no tool ran."""
    TRUNCATED = "truncated"
    """The turn reached a limit in the middle of the call; no call of the turn ran."""


class CallRecord(msgspec.Struct, frozen=True, array_like=True):
    """The record of one tool call.

    Attributes:
        tool: name of the tool as the model wrote it; empty if the call could not be read.
        seconds: how long the tool ran.
        problem: what the model was told went wrong; empty if nothing did.
    """

    tool: str
    seconds: float
    outcome: CallOutcome
    problem: str = ""


PromptRole = Literal["system", "user", "assistant", "tool"]


class Message(msgspec.Struct, frozen=True, omit_defaults=True):
    """One chat message that the policy did not write. The policy's own turns stay token ids and are never rebuilt.

    Attributes:
        role: ``assistant`` is for messages of a prompt, such as examples: their tokens are given like all others of the prompt,
            and never trained.
        tool_calls: the calls of an assistant's message of a prompt.
        call_id, name: the call that a tool's message of a prompt answers, and the tool; empty where that is not said.
    """

    role: PromptRole
    content: str
    tool_calls: tuple[ToolCall, ...] = ()
    call_id: str = ""
    name: str = ""

    def as_template_input(self) -> dict[str, Any]:
        """Return the dictionary that chat templates expect in ``messages=[...]``."""
        shown: dict[str, Any] = {"role": self.role, "content": self.content}
        if self.tool_calls:
            shown["tool_calls"] = [
                ({"id": call.id} if call.id else {})
                | {"type": "function", "function": {"name": call.name, "arguments": call.arguments}}
                for call in self.tool_calls
            ]
        return shown | {key: value for key, value in (("tool_call_id", self.call_id), ("name", self.name)) if value}


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
