"""Conversations that others have written, as episodes: messages alone, tokenised by the model's own template.

What always holds: an episode is what the policy would have played, had it said what the assistant says, token for token, since it
is put together by the same code; what the template would leave out, or write in other tokens, is refused. Nobody knows with what
probability it was said: its log-probabilities are 0.
"""

import asyncio
import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from asyncrl.core.episode import Episode
from asyncrl.core.errors import AsyncRLError, RecipeError
from asyncrl.core.ids import NOT_SAMPLED, GroupId, PolicyVersion, TaskId
from asyncrl.core.trajectory import Sampling, StopReason, Trajectory, Turn, VersionSpan
from asyncrl.generators.chat_format import ChatFormat
from asyncrl.generators.control_tokens import spelt_out
from asyncrl.replay.conversation_rows import ASSISTANT, Conversation, Said, read_conversations

_THOUGHT = re.compile(r"\s*<think>(.*?)</think>(.*)", re.DOTALL)
"""The text of a turn that begins with what was thought, as many data sets have it."""


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
    return found


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
        tokens += await (chat.delta(given, tools) if before else chat.prompt(given, tools))
        shown_turn, rendered = _rendered(said[place], shown, told, chat)
        ids = chat.encode(rendered)
        if said[place].trained:
            turns.append(Turn(len(tokens), len(tokens) + len(ids), told.reward if place == last else 0.0))
        tokens += ids
        shown.append(shown_turn)
        before = place + 1
    return _sampled(tokens, turns)


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
            turn |= dict.fromkeys(("reasoning_content", "thinking"), thought)  # templates know it by one of these
        rendered = chat.rendered_turn(before, turn, told.tools)
        if rendered is None:
            raise ValueError("the template writes a turn without the start that it gives for sampling one")
        named = {call.name: "a call" for call in said.message.tool_calls}
        parts = {thought: "what was thought", text: "the text", **named}
        left_out = [what for part, what in parts.items() if spelt_out(part.strip()) not in rendered]
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


def _ways(said: Said) -> Iterator[tuple[str, str]]:
    """Yield the ways to give a template what the assistant thought and said: a thought in the text, apart or as it stands."""
    parted = None if said.thought else _THOUGHT.fullmatch(said.message.content)
    if parted is not None and parted[1].strip():
        yield parted[1].strip("\n"), parted[2].lstrip("\n")
    yield said.thought, said.message.content
