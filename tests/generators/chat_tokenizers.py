"""Small tokenizers with chat templates of several temperaments, made on the spot."""

import asyncio
from collections.abc import Sequence

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from asyncrl.core.messages import Message, ToolSpec
from asyncrl.generators.chat_format import ChatFormat

CONTROL = ["<pad>", "<|im_start|>", "<|im_end|>"]
TAGS = ["<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"]

CHAT_ML = """\
{%- if tools -%}
{{ '<|im_start|>system\\n' }}{%- for tool in tools -%}{{ (tool | tojson) + '\\n' }}{%- endfor -%}{{ '<|im_end|>\\n' }}
{%- endif -%}
{%- for message in messages -%}
{%- if message.role == 'tool' -%}
{%- if loop.first or messages[loop.index0 - 1].role != 'tool' -%}{{ '<|im_start|>user' }}{%- endif -%}
{{ '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' -%}{{ '<|im_end|>\\n' }}{%- endif -%}
{%- else -%}
{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}
"""
"""A newline after each turn, and tool responses in a row inside one user turn."""


def make_tokenizer(template: str | None = CHAT_ML) -> PreTrainedTokenizerFast:
    """Every byte a token, and the control tokens and tags of the Hermes convention."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: index for index, token in enumerate([*CONTROL, *TAGS, *alphabet])}
    bytes_ = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    bytes_.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    bytes_.decoder = decoders.ByteLevel()
    bytes_.add_special_tokens(CONTROL)
    bytes_.add_tokens([AddedToken(tag, special=False, normalized=False) for tag in TAGS])
    return PreTrainedTokenizerFast(
        tokenizer_object=bytes_,
        pad_token="<pad>",
        eos_token="<|im_end|>",
        additional_special_tokens=["<|im_start|>"],
        chat_template=template,
        clean_up_tokenization_spaces=False,
    )


def prompt_ids(chat: ChatFormat, messages: Sequence[Message], tools: Sequence[ToolSpec] = ()) -> list[int]:
    return asyncio.run(chat.prompt(messages, tools))


def delta_ids(
    chat: ChatFormat, messages: Sequence[Message], tools: Sequence[ToolSpec] = (), after: int | None = None
) -> list[int]:
    return asyncio.run(chat.delta(messages, tools, after=after))
