"""A policy that says what a script says, in the tokens that the model's chat template writes. It needs no weights.

What always holds: a turn is what the template would write of it, so the model's parsers read it as they would the model's own.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from asyncrl.authoring.calls import made_call, read_turn
from asyncrl.core.errors import EnvironmentBroken
from asyncrl.core.ids import PolicyVersion
from asyncrl.core.messages import ToolCall, ToolSpec
from asyncrl.core.trajectory import Sampling, VersionSpan
from asyncrl.envs.base import Action
from asyncrl.generators.chat_format import ChatFormat
from asyncrl.generators.completion import Completion
from asyncrl.generators.gateway.episode import spec_of
from asyncrl.generators.gateway.messages import for_template
from asyncrl.generators.gateway.observer import Placed
from asyncrl.generators.gateway.protocol import Protocol

Script = Callable[[int, Sequence[ToolSpec]], Action]
"""Gives the turn of this number, from 0, of a conversation with these tools."""

ANSWER = "The answer is 42."


def calling_each_tool(seed: int = 0) -> Script:
    """Return a script that calls tools with made-up arguments in two turns, one call and then two, and then answers."""
    generator, next_tool = random.Random(seed), 0

    def turn(number: int, tools: Sequence[ToolSpec]) -> Action:
        nonlocal next_tool
        if not tools or number >= 2:
            return Action(ANSWER, ())
        calls = [made_call(tools[(next_tool + place) % len(tools)], generator) for place in range(number + 1)]
        next_tool += len(calls)
        return Action("" if number else "Let me see.", tuple(calls))

    return turn


def reading(turns: Sequence[str]) -> Script:
    """Return a script that says these turns in each conversation, the last one again and again; see :func:`read_turn`."""

    def turn(number: int, tools: Sequence[ToolSpec]) -> Action:
        return read_turn(turns[min(number, len(turns) - 1)], tools)

    return turn


class ScriptedPolicy:
    """Samples what a script says.

    Args:
        thinks: whether a thought comes before what is said, where the template writes thoughts.
        current: returns the request that is being answered.
    """

    def __init__(self, chat: ChatFormat, script: Script, current: Callable[[], Placed], *, thinks: bool) -> None:
        self._chat, self._script, self._current, self._thinks = chat, script, current, thinks

    @contextmanager
    def episode(self) -> "Iterator[ScriptedPolicy]":
        """Return the context of one episode; there is one version."""
        yield self

    async def generate(
        self,
        token_ids: Sequence[int],
        *,
        max_tokens: int,
        sampling: Sampling,
        stop_token_ids: tuple[int, ...],
        known_experts: int = 0,
    ) -> Completion:
        """Say the next turn of the script; its log-probabilities are 0.

        Raises:
            EnvironmentBroken: the chat template writes a turn in another way than it asks for one.
            ValueError: a turn of no token is asked for, which no engine samples either.
        """
        if max_tokens < 1:
            raise ValueError(f"max_tokens is {max_tokens}; a turn has at least one token")
        placed = self._current()
        asked = placed.asked
        tools = [spec_of(tool) for tool in asked.tools]
        number = sum(message["role"] == "assistant" for message in asked.messages)
        if placed.protocol is Protocol.GENERATE:  # its conversation is one text
            number = placed.turns
        turn = _as_template_input(self._script(number, tools), thinks=self._thinks)
        said = self._chat.written_turn([for_template(message) for message in asked.messages], turn, tools)
        if said is None:
            raise EnvironmentBroken("the model's chat template writes a turn without the start that it gives for sampling one")
        ids = self._cut(said[:max_tokens], sampling.stop_texts)
        stopped = len(ids) < len(said[:max_tokens]) or ids[-1] in stop_token_ids
        spans = (VersionSpan(0, len(ids), PolicyVersion(0)),)
        return Completion(np.array(ids, np.int32), np.zeros(len(ids), np.float32), spans, stopped)

    def _cut(self, ids: list[int], stops: Sequence[str]) -> list[int]:
        """Return the tokens up to the one that completes a stop string."""
        for end in range(1, len(ids) if stops else 0):
            if any(stop in self._chat.decode(ids[:end]) for stop in stops):
                return ids[:end]
        return ids


def _as_template_input(action: Action, *, thinks: bool) -> dict[str, Any]:
    turn: dict[str, Any] = {"role": "assistant", "content": action.content}
    if action.calls:
        turn["tool_calls"] = [
            {"id": f"call_{place}", "type": "function", "function": {"name": each.name, "arguments": dict(each.arguments)}}
            for place, each in enumerate(action.calls)
            if isinstance(each, ToolCall)
        ]
    return {**turn, "reasoning_content": "I think."} if thinks else turn
