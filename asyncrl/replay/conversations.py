"""Conversations that others have written, as episodes: messages alone, tokenised by the model's own template.

What always holds: an episode is what the policy would have played, had it said what the assistant says, token for token, since it
is put together by the same code; what the template would leave out, or write in other tokens, is refused. Nobody knows with what
probability it was said: its log-probabilities are 0.
"""

import asyncio
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from asyncrl.core.episode import Episode
from asyncrl.core.errors import AsyncRLError, RecipeError
from asyncrl.core.ids import NOT_SAMPLED, GroupId, PolicyVersion, TaskId
from asyncrl.core.messages import Message, ToolSpec
from asyncrl.core.text import short
from asyncrl.core.trajectory import Sampling, StopReason, Trajectory, Turn, VersionSpan
from asyncrl.generators.chat_format import ChatFormat
from asyncrl.generators.control_tokens import spelt_out
from asyncrl.replay.conversation_rows import ASSISTANT, Conversation, Said, read_conversations

_THOUGHT = re.compile(r"\s*<think>(.*?)</think>(.*)", re.DOTALL)
"""The text of a turn that begins with what was thought, as many data sets have it."""
_SHOWN_THOUGHTS = ("reasoning_content", "thinking")
"""Keys by one of which templates know what was thought."""


def episodes_of_conversations(file: Path, chat: ChatFormat, temperature: float) -> list[Episode]:
    """Return the conversations of a file as episodes, group by group; the ids of groups are numbers from 0.

    Args:
        chat: the model's chat format.
        temperature: what the recipe samples with.

    Raises:
        RecipeError: a conversation cannot be told with the model's template.
    """
    return asyncio.run(_episodes(file, chat, temperature))


async def _episodes(file: Path, chat: ChatFormat, temperature: float) -> list[Episode]:
    from jinja2 import TemplateError  # comes with transformers

    groups: dict[object, int] = {}
    members: dict[int, int] = {}
    found = []
    for told in read_conversations(file):
        group = groups.setdefault(told.place if told.group is None else told.group, len(groups))
        sample = members[group] = members.get(group, -1) + 1
        try:
            trajectory = await _trajectory(told, chat)
        except (AsyncRLError, TemplateError, ValueError, TypeError) as error:
            problem = f"{told.place} cannot be told with the model's chat template: {error}"
            raise RecipeError("--from", problem, "correct it, or name another template (model.chat_template)") from error
        found.append(
            Episode(
                task_id=TaskId(told.place),
                group_id=GroupId(group),
                sample_index=sample,
                attempt=0,
                trajectories=(trajectory,),
                reward=told.reward,
                stop_reason=StopReason.ENVIRONMENT_DONE,
                sampling=Sampling(temperature),
            )
        )
    return sorted(found, key=lambda episode: episode.group_id)


async def _trajectory(told: Conversation, chat: ChatFormat) -> Trajectory:
    """Put a conversation's tokens together, up to the last turn of the assistant that is trained."""
    said, tools = told.said, told.tools
    places = [number for number, each in enumerate(said) if each.message.role == ASSISTANT]
    last = max((place for place in places if said[place].trained), default=None)
    if last is None or places[0] == 0:
        raise ValueError("it has no message before the assistant's, or none of the assistant that is trained")
    if any(after - before == 1 for before, after in pairwise(places)):
        raise ValueError("two messages of the assistant follow each other")
    tokens, turns = list[int](), list[Turn]()
    before, shown = 0, list[dict[str, Any]]()
    for place in (each for each in places if each <= last):
        given = [each.message for each in said[before:place]]
        shown += [each.as_template_input() for each in given]
        _check_system(given, tools, chat, later=before > 0)
        tokens += await (chat.delta(given, tools) if before else chat.prompt(given, tools))
        shown_turn, rendered = _rendered(said[place], shown, told, chat)
        ids = chat.encode(rendered)
        if said[place].trained:
            turns.append(Turn(len(tokens), len(tokens) + len(ids), told.reward if place == last else 0.0))
        tokens += ids
        shown.append(shown_turn)
        before = place + 1
    return _sampled(tokens, turns)


def _check_system(given: Sequence[Message], tools: Sequence[ToolSpec], chat: ChatFormat, *, later: bool) -> None:
    """Refuse system messages that the template leaves out.

    Args:
        given: the messages before a turn.
        later: whether they follow another turn.

    Raises:
        ValueError: there is one.
    """
    system = [number for number, each in enumerate(given) if each.role == "system" and each.content.strip()]
    if later and system and not chat.takes_system_later:
        text = short(given[system[0]].content)
        raise ValueError(f"it takes no system message after a turn, and {text} is one; write it into another message")
    if later or system in ([], [0]):
        return  # making the prompt looks at the first one
    shown = [each.as_template_input() for each in given]
    for number in system:
        if chat.rendered(shown, tools) == chat.rendered([*shown[:number], *shown[number + 1 :]], tools):
            text = short(given[number].content)
            raise ValueError(f"it leaves out the system message {text}; write one system message, as the first message")


def _sampled(tokens: Sequence[int], turns: Sequence[Turn]) -> Trajectory:
    """Make a trajectory of which the turns, and nothing else, are as if they were sampled."""
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


def _rendered(said: Said, before: Sequence[dict[str, Any]], told: Conversation, chat: ChatFormat) -> tuple[dict[str, Any], str]:
    """Return a turn of the assistant as templates take it, and as the model's writes it.

    Raises:
        ValueError: the template leaves out a part of it, or writes one in other tokens than the model's own.
    """
    problem = ""
    for thought, text in _ways(said):
        turn = said.message.as_template_input() | {"content": text}
        if thought:
            turn |= dict.fromkeys(_SHOWN_THOUGHTS, thought)
        rendered = chat.rendered_turn(before, turn, told.tools)
        if rendered is None:
            raise ValueError("the template writes a turn without the start that it gives for sampling one")
        named = {call.name: "a call" for call in said.message.tool_calls}
        parts = {thought: "what was thought", text: "the text", **named}
        left_out = [what for part, what in parts.items() if spelt_out(part.strip()) not in rendered]
        left_out += [what for what, less in _without_a_part(turn) if _writes(less, rendered, before, told, chat)]
        spelt = next(filter(None, map(chat.spelt_control_token, (thought, text))), "")
        if not left_out and not spelt:
            return turn, rendered
        problem = problem or (
            f"it leaves out {left_out[0]} of a turn of the assistant"
            if left_out
            else f"{spelt!r} in the assistant's text would be trained as ordinary text, and the model has a token for it: "
            "write calls as tool_calls, thoughts as reasoning_content, and leave others out"
        )
    raise ValueError(problem)


def _without_a_part(turn: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the turn without what was thought, and without each of its calls: templates write other turns for these."""
    if any(turn.get(key, "").strip() for key in _SHOWN_THOUGHTS):
        yield "what was thought", {key: value for key, value in turn.items() if key not in _SHOWN_THOUGHTS}
    calls = turn.get("tool_calls", [])
    for number in range(len(calls)):
        others = [*calls[:number], *calls[number + 1 :]]
        plain = {key: value for key, value in turn.items() if key != "tool_calls"}
        yield "a call", plain | ({"tool_calls": others} if others else {})


def _writes(
    turn: Mapping[str, Any], rendered: str, before: Sequence[dict[str, Any]], told: Conversation, chat: ChatFormat
) -> bool:
    """Whether the template writes a turn as ``rendered``."""
    try:
        return chat.rendered_turn(before, turn, told.tools) == rendered
    except Exception:  # noqa: BLE001 - whatever the template's own code raises: it has looked for what is not there
        return False


def _ways(said: Said) -> Iterator[tuple[str, str]]:
    """Yield the ways to give a template what the assistant thought and said: a thought in the text, apart or as it stands."""
    parted = None if said.thought else _THOUGHT.fullmatch(said.message.content)
    if parted is not None and parted[1].strip():
        yield parted[1].strip("\n"), parted[2].lstrip("\n")
    yield said.thought, said.message.content
