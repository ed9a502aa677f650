"""What a model's folder holds, in sentences: weights by the headers of their files, tokens, turns, and what reaches the prompt.

What always holds: no weights are loaded; and what is said here of tools and system message is what an episode would meet.
"""

import asyncio
from collections import Counter
from collections.abc import Iterator, Sequence
from math import prod
from pathlib import Path

import msgspec

from asyncrl.core.architectures.architecture import OUTPUT
from asyncrl.core.files.weight_files import DTYPES, stored_tensors
from asyncrl.core.measures.units import memory
from asyncrl.core.messages import Message, ToolSpec
from asyncrl.core.recipe.schema import ModelConfig
from asyncrl.generators.chat_format import ChatFormat
from asyncrl.generators.chat_template import TemplateUnsuitable, first_line

_ASKED = Message("user", "What is 1 + 2?")
_SYSTEM = Message("system", "Be brief.")
_TOOL = ToolSpec("add", "Adds.", {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]})
_THOUGHT = "<think>"


class Fact(msgspec.Struct, frozen=True):
    """One thing that a model's folder holds.

    Attributes:
        topic: what it is about.
        found: what there is.
    """

    topic: str
    found: str


def weight_facts(folder: Path, *, tied: bool) -> Iterator[Fact]:
    """Say in which files and types the weights in ``folder`` are, which have been checked, and what the output layer is."""
    stored = stored_tensors(folder, "model.path")
    files = {tensor.file for tensor in stored.values()}
    numbers = Counter[str]()
    for tensor in stored.values():
        numbers[DTYPES.get(tensor.dtype, tensor.dtype)] += prod(tensor.shape)
    types = " and ".join(dtype for dtype, _ in numbers.most_common())
    size = memory(sum(file.stat().st_size for file in files))
    yield Fact("weights", f"{len(files)} safetensors file{'s' * (len(files) > 1)}, whole: {len(stored)} tensors, {size}, {types}")
    own = f"{OUTPUT}, a layer of its own"
    redundant = f", and {OUTPUT}, which equals it, is left out" if OUTPUT in stored else ""
    yield Fact("output layer", f"tied to the embedding{redundant}" if tied else own)


def token_fact(chat: ChatFormat, vocabulary: int) -> Fact:
    """Say how many tokens the tokenizer has, and how many embeddings the model."""
    tokens = chat.tokenizer.get_vocab()
    return Fact("vocabulary", f"{len(tokens):,} tokens, the last is {max(tokens.values()):,}; {vocabulary:,} embeddings")


def chat_facts(chat: ChatFormat, model: ModelConfig) -> Iterator[Fact]:
    """Say where turns begin and end, what becomes of tools and system message, and what is known of thoughts."""
    ends = " or ".join(chat.decode([end]) for end in chat.ends_of_turn)
    yield Fact("turns", f"begin with {chat.decode(chat.turn_start())!r} and end at {ends}")
    reaching = {what: _why_not(chat, messages, tools) for what, messages, tools in _PROMPTS}
    yield Fact("prompt", "; ".join(f"{what}: {why or 'reaches it'}" for what, why in reaching.items()))
    writes = any(_THOUGHT in template for template in chat.templates.values())
    if model.reasoning_parser is not None:
        thoughts = f"cut from what is judged by model.reasoning_parser {model.reasoning_parser}"
    elif writes:
        thoughts = f"the template has {_THOUGHT}, and without a model.reasoning_parser they are part of what is judged"
    else:
        thoughts = f"the template has no {_THOUGHT}"
    yield Fact("thoughts", thoughts)


_PROMPTS: tuple[tuple[str, Sequence[Message], Sequence[ToolSpec]], ...] = (
    ("a system message", (_SYSTEM, _ASKED), ()),
    ("tools", (_ASKED,), (_TOOL,)),
)


def _why_not(chat: ChatFormat, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> str:
    """Say why an episode that begins so would be refused; empty if it is not."""
    try:
        asyncio.run(chat.prompt(messages, tools))
    except TemplateUnsuitable as error:
        return f"refused, {error.problem}"
    except Exception as error:  # noqa: BLE001 - whatever the template's own code raises
        return f"refused, {first_line(error)}"
    return ""
