"""Long outputs of tools: the model reads their beginning and their end, and between them how much was cut.

A tool can answer with a whole log, or with a page of megabytes. The beginning is kept because it says what the output is, the end
because it says how it ended: the last line of a log is often the error.
"""

from collections.abc import Sequence

from msgspec.structs import replace

from asyncrl.core.messages import Message

TOOL_OUTPUT_CUT = "tool_output_cut"
"""What an episode's metrics call the number of characters cut from the outputs of its tools; left out where none was."""


def cut_tool_outputs(messages: Sequence[Message], limit: int) -> tuple[list[Message], int]:
    """``messages`` with at most ``limit`` characters of what each tool said, and how many characters were cut in all."""
    excess = [max(0, len(message.content) - limit) if message.role == "tool" else 0 for message in messages]
    cut = [_without_middle(message, limit, lost) if lost else message for message, lost in zip(messages, excess, strict=True)]
    return cut, sum(excess)


def _without_middle(message: Message, limit: int, lost: int) -> Message:
    begin = limit - limit // 2
    text = message.content
    return replace(message, content=f"{text[:begin]}\n[{lost} characters cut]\n{text[begin + lost :]}")
