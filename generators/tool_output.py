"""Shortens long tool outputs: the model sees the beginning, the number of characters cut, and the end.

A tool can answer with a whole log, or with a page of megabytes. The beginning is kept because it says what the output
is, and the end because it says how the call ended: the last line of a log is often the error.
"""

from collections.abc import Sequence

from msgspec.structs import replace

from asyncrl.core.messages import Message

TOOL_OUTPUT_CUT = "tool_output_cut"
"""Name of the episode metric that counts characters cut from tool outputs; absent if nothing was cut."""


def cut_tool_outputs(messages: Sequence[Message], limit: int) -> tuple[list[Message], int]:
    """Cut each tool message to ``limit`` characters and a note; returns them and how many characters were cut."""
    excess = [max(0, len(message.content) - limit) if message.role == "tool" else 0 for message in messages]
    cut = [_without_middle(message, limit, lost) if lost else message for message, lost in zip(messages, excess, strict=True)]
    return cut, sum(excess)


def _without_middle(message: Message, limit: int, lost: int) -> Message:
    begin = limit - limit // 2
    text = message.content
    return replace(message, content=f"{text[:begin]}\n[{lost} characters cut]\n{text[begin + lost :]}")
