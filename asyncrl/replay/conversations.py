"""Conversations that others have written, as episodes: messages alone, tokenised by the model's own template.

What always holds: an episode is what the policy would have played, had it said what the assistant says, token for token, since it
is put together by the same code. Nobody knows with what probability it was said: its log-probabilities are 0.
"""

import asyncio
import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from asyncrl.core.episode import Episode
from asyncrl.core.errors import AsyncRLError, RecipeError
from asyncrl.core.ids import NOT_SAMPLED, GroupId, PolicyVersion, TaskId
from asyncrl.core.messages import Message, ToolSpec
from asyncrl.core.trajectory import Sampling, StopReason, Trajectory, Turn, VersionSpan
from asyncrl.generators.chat_format import ChatFormat

MESSAGES = "messages"
"""The column, or the key, that conversations are known by."""
_ASSISTANT = "assistant"


class Conversation(msgspec.Struct, frozen=True):
    """One conversation.

    Attributes:
        messages: as chat templates take them, each with a ``role`` and a ``content``, and perhaps with ``tool_calls``.
        tools: as requests describe them: ``{"type": "function", "function": {"name": ..., "parameters": ...}}``.
        reward: how good it is.
        group: conversations with the same one are compared with each other; by default each is alone.
    """

    messages: tuple[dict[str, Any], ...]
    tools: tuple[dict[str, Any], ...] | None = None
    reward: float = 1.0
    group: str | int | None = None


def read_conversations(file: Path) -> Iterator[tuple[str, Conversation]]:
    """Yield the conversations of a ``.jsonl`` or ``.parquet`` file, each with the name of its place.

    Raises:
        RecipeError: one of them is none.
    """
    for place, row in _rows(file):
        try:
            yield place, msgspec.convert({key: value for key, value in row.items() if value is not None}, Conversation)
        except msgspec.ValidationError as error:
            raise RecipeError("--from", f"{place} is no conversation: {error}", "see docs/how-to/replay.md") from error


def _rows(file: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    if file.suffix == ".parquet":
        import pyarrow.parquet as pq

        columns = [name for name in Conversation.__struct_fields__ if name in pq.read_schema(file).names]
        for number, row in enumerate(pq.read_table(file, columns=columns).to_pylist(), 1):
            yield f"row {number} of {file}", row
        return
    with file.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if line.strip():
                try:
                    row = json.loads(line)
                except ValueError as error:
                    raise RecipeError("--from", f"line {number} of {file} is no JSON: {error}", "correct it") from error
                yield f"line {number} of {file}", row if isinstance(row, dict) else {}


def episodes_of_conversations(file: Path, chat: ChatFormat, temperature: float) -> list[Episode]:
    """Return the conversations of a file as episodes; their group ids are numbers from 0.

    Args:
        chat: the model's chat format.
        temperature: what the recipe samples with.

    Raises:
        RecipeError: a conversation cannot be told with the model's template.
    """
    return asyncio.run(_episodes(file, chat, temperature))


async def _episodes(file: Path, chat: ChatFormat, temperature: float) -> list[Episode]:
    groups: dict[object, int] = {}
    members: dict[int, int] = {}
    found = []
    for place, told in read_conversations(file):
        group = groups.setdefault(place if told.group is None else told.group, len(groups))
        sample = members[group] = members.get(group, -1) + 1
        try:
            trajectory = await _trajectory(told, chat)
        except (AsyncRLError, ValueError, TypeError, KeyError) as error:
            problem = f"{place} cannot be told with the model's chat template: {error}"
            raise RecipeError("--from", problem, "correct it, or name another template (model.chat_template)") from error
        found.append(
            Episode(
                task_id=TaskId(place),
                group_id=GroupId(group),
                sample_index=sample,
                attempt=0,
                trajectories=(trajectory,),
                reward=told.reward,
                stop_reason=StopReason.ENVIRONMENT_DONE,
                sampling=Sampling(temperature),
            )
        )
    return found


async def _trajectory(told: Conversation, chat: ChatFormat) -> Trajectory:
    """Put a conversation's tokens together, up to the last turn of the assistant."""
    messages, tools = [_plain(each) for each in told.messages], [_tool(each) for each in told.tools or ()]
    places = [number for number, each in enumerate(messages) if each["role"] == _ASSISTANT]
    if not places or places[0] == 0:
        raise ValueError("it has no message before the assistant's, or none of the assistant")
    if any(after - before == 1 for before, after in pairwise(places)):
        raise ValueError("two messages of the assistant follow each other")
    tokens, turns = list[int](), list[Turn]()
    before = 0
    for place in places:
        given = [msgspec.convert({key: each[key] for key in ("role", "content")}, Message) for each in messages[before:place]]
        tokens += await (chat.delta(given, tools) if turns else chat.prompt(given, tools))
        said = chat.written_turn(messages[:place], messages[place], tools)
        if said is None:
            raise ValueError("the template writes a turn without the start that it gives for sampling one")
        reward = told.reward if place == places[-1] else 0.0
        turns.append(Turn(len(tokens), len(tokens) + len(said), reward))
        tokens += said
        before = place + 1
    mask = np.zeros(len(tokens), bool)
    spans, end = list[VersionSpan](), 0
    for turn in turns:
        mask[turn.start : turn.end] = True
        spans += [VersionSpan(end, turn.start, NOT_SAMPLED), VersionSpan(turn.start, turn.end, PolicyVersion(0))]
        end = turn.end
    return Trajectory(
        token_ids=np.array(tokens, np.int32),
        logprobs=np.zeros(len(tokens), np.float32),
        loss_mask=mask,
        version_spans=tuple(span for span in spans if span.end > span.start),
        turns=tuple(turns),
    )


def _plain(message: dict[str, Any]) -> dict[str, Any]:
    """A message as templates take it: without what is null, and with the arguments of calls as objects."""
    plain = {key: value for key, value in message.items() if value is not None}
    plain.setdefault("content", "")
    if not isinstance(plain.get("role"), str) or not isinstance(plain["content"], str):
        raise ValueError(f"a message needs a role and a text as content, and one has {sorted(message)}")
    for call in plain.get("tool_calls", ()):
        function = call.get("function", call)
        if isinstance(function.get("arguments"), str):
            function["arguments"] = json.loads(function["arguments"])
    return plain


def _tool(described: dict[str, Any]) -> ToolSpec:
    function = described.get("function", described)
    return ToolSpec(function["name"], function.get("description") or "", function["parameters"])
