"""Demonstrations as token rows: rendered by the chat template, encoded, with the assistant's tokens marked.

The assistant's tokens include the token that ends its turn and exclude the header before it, exactly as if they were
sampled.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from transformers import PreTrainedTokenizerFast
from transformers.utils.chat_template_utils import render_jinja_template

from asyncrl.core.messages import ToolCall
from asyncrl.envs.lessons.demonstrations import Demonstration
from asyncrl.learners.tiny.chat_template import CHAT_TEMPLATE
from asyncrl.learners.tiny.tokenizer import ASSISTANT_HEADER, END_OF_TURN

if TYPE_CHECKING:
    import torch


class Example(msgspec.Struct, frozen=True):
    """One demonstration as tokens, for training or measuring.

    Attributes:
        token_ids: [T].
        spoken: [T], true for the assistant's tokens.
    """

    token_ids: tuple[int, ...]
    spoken: tuple[bool, ...]


class PaddedRows(msgspec.Struct, frozen=True):
    """Rows of different lengths side by side, padded on the right.

    Attributes:
        token_ids: int64 [N, T].
        spoken: bool [N, T], false on padding.
    """

    token_ids: "torch.Tensor"
    spoken: "torch.Tensor"


def messages(demonstration: Demonstration) -> list[dict[str, Any]]:
    """The demonstration as a list of messages, in the form that chat templates take."""
    conversation: list[dict[str, Any]] = [{"role": each.role, "content": each.content} for each in demonstration.opening]
    for calls, results in demonstration.turns:
        conversation.append(calling(calls))
        conversation += [{"role": each.role, "content": each.content} for each in results]
    return [*conversation, {"role": "assistant", "content": demonstration.answer}]


def calling(calls: Sequence[ToolCall]) -> dict[str, Any]:
    """The message of a turn that consists of calls, in the form that chat templates take."""
    functions = [{"type": "function", "function": {"name": call.name, "arguments": call.arguments}} for call in calls]
    return {"role": "assistant", "content": "", "tool_calls": functions}


def render(demonstrations: Sequence[Demonstration]) -> list[str]:
    """Render the text of each demonstration, tools included."""
    return [_rendered(each) for each in demonstrations]


def _rendered(demonstration: Demonstration) -> str:
    tools = [tool.as_template_input() for tool in demonstration.tools] or None
    (text,), _ = render_jinja_template([messages(demonstration)], tools=tools, chat_template=CHAT_TEMPLATE)
    return str(text)


def encode(demonstrations: Sequence[Demonstration], tokenizer: PreTrainedTokenizerFast) -> list[Example]:
    """Encode each demonstration as tokens, and mark the assistant's tokens."""
    if not demonstrations:
        return []
    header = tokenizer.encode(ASSISTANT_HEADER)
    end = tokenizer.convert_tokens_to_ids(END_OF_TURN)
    encoded = tokenizer(render(demonstrations), add_special_tokens=False)["input_ids"]
    examples = [Example(tuple(ids), tuple(_spoken(ids, header, end))) for ids in encoded]
    assert all(any(example.spoken) for example in examples), "the tokenizer splits the header of a turn in several ways"
    return examples


def pad(rows: Sequence[Example]) -> PaddedRows:
    """Pad the rows to one tensor. The content of the padding does not matter, because attention is causal."""
    import torch  # takes seconds; rendering needs none of it

    length = max(len(row.token_ids) for row in rows)
    return PaddedRows(
        torch.tensor([row.token_ids + (0,) * (length - len(row.token_ids)) for row in rows]),
        torch.tensor([row.spoken + (False,) * (length - len(row.spoken)) for row in rows]),
    )


def _spoken(token_ids: list[int], header: list[int], end: int) -> list[bool]:
    spoken = [False] * len(token_ids)
    speaking = False
    for index, token_id in enumerate(token_ids):
        spoken[index] = speaking
        if token_id == end:
            speaking = False
        elif token_ids[index + 1 - len(header) : index + 1] == header:
            speaking = True
    return spoken
