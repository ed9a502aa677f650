"""Finds the tasks whose prompts leave no room for a turn, before anything starts.

Prompts are measured in tokens as a run would send them: by the model's own template, with the environment's system message and
tools. What always holds: a task is named as too long only if its prompt was turned into tokens; of a source with very many tasks,
some are looked at, evenly spread, and it is said how many.
"""

import asyncio
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from asyncrl.core.errors import RecipeError
from asyncrl.core.messages import Message, ToolSpec
from asyncrl.core.text import pluralize, writable

if TYPE_CHECKING:
    from asyncrl.generators.chat_format import ChatFormat

LOOKED_AT = 10_000
"""The most tasks of a source whose prompts are counted."""
_GROWTH = 18
"""Most bytes that a byte of text may become before it is cut into tokens, by a tokenizer's normaliser."""
_SEAM = 8
"""Tokens by which a text in a prompt may differ from the text alone."""


class Opening(msgspec.Struct, frozen=True):
    """How an episode of a task begins. Nothing in it has been checked: roles and schemas may be anything.

    Attributes:
        index: the task's place in its source.
        task: its id.
        messages: as plain data.
        tools: place of its tools in :attr:`PromptSet.tools`.
    """

    index: int
    task: str
    messages: list[dict[str, Any]]
    tools: int


class PromptSet(msgspec.Struct, frozen=True):
    """The prompts of one source that are counted.

    Attributes:
        split: what the tasks are for.
        name: the source's name.
        of: how many tasks the source has.
        openings: those that are looked at.
        tools: the different lists of tools that come with them, as plain data.
    """

    split: str
    name: str
    of: int
    openings: list[Opening]
    tools: list[list[dict[str, Any]]]

    @classmethod
    def of_shown(
        cls, split: str, name: str, of: int, shown: Iterable[tuple[int, str, Sequence[Message], Sequence[ToolSpec]]]
    ) -> "PromptSet":
        """Make the set of what an environment shows at the start of tasks: place and id, messages and tools of each."""
        tools: dict[bytes, int] = {}
        openings = [
            Opening(index, task, msgspec.to_builtins(list(messages)), tools.setdefault(_encoded(offered), len(tools)))
            for index, task, messages, offered in shown
        ]
        return cls(split, name, of, openings, [json.loads(each) for each in tools])


def _encoded(tools: Sequence[ToolSpec]) -> bytes:
    return json.dumps(msgspec.to_builtins(list(tools))).encode()


class Found(msgspec.Struct, frozen=True):
    """What came of counting one set: the tokens of the prompts that are too long, by the task's place."""

    split: str
    name: str
    tokens: dict[int, int]


class TooLong(msgspec.Struct, frozen=True):
    """The tasks of a source whose prompts leave no room for a turn.

    Attributes:
        prompts: how many there are.
        indexes: their places in the source, as far as a run may rely on them.
        looked_at: how many prompts were counted.
        of: how many tasks the source has.
        longest: the id of the task with the longest prompt, and its tokens.
    """

    split: str
    name: str
    prompts: int
    indexes: tuple[int, ...]
    looked_at: int
    of: int
    longest: tuple[str, int]

    def __str__(self) -> str:
        task, tokens = self.longest
        looked = f"{self.of:,}" if self.looked_at == self.of else f"{self.looked_at:,} that were looked at of {self.of:,}"
        leave = "leaves" if self.prompts == 1 else "leave"
        return (
            f"tasks.{self.split} ({self.name}): {pluralize(self.prompts, 'prompt')} of {looked} {leave} no room for a turn: the "
            f"longest, of task {task}, has {tokens:,} tokens with this model"
        )


def chosen(tasks: int) -> Sequence[int]:
    """Return the places of the tasks to look at: all, or :data:`LOOKED_AT` evenly spread ones."""
    return range(tasks) if tasks <= LOOKED_AT else [place * tasks // LOOKED_AT for place in range(LOOKED_AT)]


def most_tokens(messages: Iterable[Mapping[str, Any]]) -> float:
    """Return the most tokens that texts of messages may have, as each is of at least a byte; infinity if that is not clear."""
    most = 0.0
    for message in messages:
        if message.get("tool_calls"):  # a template may write arguments in many lines
            return math.inf
        text = message["content"]
        most += len(text) if text.isascii() else _GROWTH * len(text.encode(errors="replace"))
    return most


def count(chat: "ChatFormat", sets: Iterable[PromptSet], max_context: int) -> list[Found]:
    """Find the prompts of each set that leave no room for a turn. Those that cannot be rendered are not among them."""
    return [Found(each.split, each.name, asyncio.run(_of_set(chat, each, max_context))) for each in sets]


async def _of_set(chat: "ChatFormat", prompts: PromptSet, max_context: int) -> dict[int, int]:
    found, frames = {}, _Frames(chat, prompts)
    for opening in prompts.openings:
        frame, most = await frames.tokens(opening), most_tokens(opening.messages)
        # Texts alone are cut into tokens ten times as fast as a prompt with its tools.
        if frame + most < max_context or (most < math.inf and frame + frames.of_texts(opening) < max_context):
            continue
        tokens = await frames.count(opening.messages, opening.tools)
        if tokens >= max_context:
            found[opening.index] = tokens
    return found


class _Frames:
    """Tokens of prompts without their texts, one for each sequence of roles and list of tools."""

    def __init__(self, chat: "ChatFormat", prompts: PromptSet) -> None:
        self._chat, self._known = chat, dict[tuple[tuple[str, ...], int], int]()
        self._tools = [[ToolSpec(**tool) for tool in tools] for tools in prompts.tools]

    async def tokens(self, opening: Opening) -> int:
        key = tuple(str(message["role"]) for message in opening.messages), opening.tools
        if key not in self._known:
            self._known[key] = await self.count([{"role": role, "content": "."} for role in key[0]], opening.tools)
        return self._known[key]

    def of_texts(self, opening: Opening) -> int:
        """Count the tokens of the texts alone, and some more for what happens where a text meets the template's own."""
        texts = (writable(message["content"]) for message in opening.messages)
        return sum(len(self._chat.encode(text)) + _SEAM for text in texts)

    async def count(self, messages: Iterable[Mapping[str, Any]], tools: int) -> int:
        """Count the tokens of a prompt; 0 if the template cannot render it, which shows when such a task is played."""
        try:
            return len(await self._chat.prompt([msgspec.convert(each, Message) for each in messages], self._tools[tools]))
        except Exception:  # noqa: BLE001 - a template may raise anything
            return 0


def judged(sets: Sequence[PromptSet], found: Iterable[Found], policy: str, max_context: int) -> tuple[TooLong, ...]:
    """Say which tasks are left out.

    Raises:
        RecipeError: ``policy`` is ``refuse`` and there is one; or all prompts of a source that were looked at are too long.
    """
    by_source = {(each.split, each.name): each for each in sets}
    judged = []
    for each in found:
        if not each.tokens:
            continue
        prompts = by_source[each.split, each.name]
        longest = max(each.tokens, key=lambda index: each.tokens[index])
        task = next(opening.task for opening in prompts.openings if opening.index == longest)
        too_long = TooLong(
            each.split,
            each.name,
            len(each.tokens),
            tuple(each.tokens),
            len(prompts.openings),
            prompts.of,
            (task, each.tokens[longest]),
        )
        if policy == "refuse" or len(each.tokens) == len(prompts.openings):
            raise RecipeError(
                "model.max_context",
                f"{too_long}, and model.max_context is {max_context:,}",
                "raise it, shorten prompts and tools, or leave out such tasks"
                + (" (tasks.too_long=leave_out)" if policy == "refuse" else ""),
            )
        judged.append(too_long)
    return tuple(judged)


def left_out(found: Iterable[TooLong], split: str) -> dict[str, list[int]]:
    """Return the places of the tasks of a split that a run leaves out, by source."""
    return {each.name: sorted(each.indexes) for each in found if each.split == split and each.indexes}
