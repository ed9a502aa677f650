"""Tells demonstrations in a tokenizer and a chat template that others have made.

What always holds: a row is what an episode would be in which the policy says what was demonstrated, token for token, since it is
put together by the same code.
"""

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from asyncrl.core.errors import AsyncRLError
from asyncrl.core.messages import Message
from asyncrl.envs.lessons.demonstrations import Demonstration
from generators.chat_format import ChatFormat
from learners.tiny.conversations import Example, calling

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class CannotTell(AsyncRLError):
    """A demonstration cannot be told with a chat template."""


class ChatVoice:
    """Tells demonstrations in a model's chat format; see :class:`learners.tiny.making.Voice`.

    Args:
        chat: the model's chat format.
        thinks: whether a thought comes before what is said in each turn, where the template writes thoughts.
    """

    def __init__(self, chat: ChatFormat, *, thinks: bool) -> None:
        self._chat, self._thinks = chat, thinks
        self.tokenizer: PreTrainedTokenizerBase = chat.tokenizer
        self.ends = chat.ends_of_turn

    def rows(self, demonstrations: Sequence[Demonstration]) -> list[Example]:
        """Return each demonstration as tokens, with the assistant's marked.

        Raises:
            CannotTell: the template writes a turn of the assistant in another way than it asks for one.
            TemplateUnsuitable: it leaves out tools or system message, or no tool's answer could follow.
        """
        return asyncio.run(self._rows(demonstrations))

    async def _rows(self, demonstrations: Sequence[Demonstration]) -> list[Example]:
        return [await self._row(each) for each in demonstrations]

    async def _row(self, told: Demonstration) -> Example:
        conversation, given = _given(told.opening), await self._chat.prompt(told.opening, told.tools)
        token_ids, spoken = list[int](), list[bool]()
        for calls, results in (*told.turns, ((), ())):
            turn = calling(calls) if calls else {"role": "assistant", "content": told.answer}
            said = self._said(conversation, turn, told)
            token_ids += [*given, *said]
            spoken += [False] * len(given) + [True] * len(said)
            conversation += [turn, *_given(results)]
            given = await self._chat.delta(results, told.tools) if results else []
        return Example(tuple(token_ids), tuple(spoken))

    def _said(self, before: Sequence[dict[str, Any]], turn: dict[str, Any], told: Demonstration) -> list[int]:
        thinking = {**turn, "reasoning_content": _thought(turn)} if self._thinks else turn
        said = self._chat.written_turn(before, thinking, told.tools)
        if said is None:
            raise CannotTell(
                f"the chat template writes a turn without the start that it gives for sampling one, "
                f"{self._chat.decode(self._chat.turn_start(told.tools))!r}; set its variables (model.chat_template_kwargs), "
                "leave out model.reasoning_parser, or name another template (model.chat_template)"
            )
        return said


def _thought(turn: dict[str, Any]) -> str:
    return f"I call {turn['tool_calls'][0]['function']['name']}." if "tool_calls" in turn else "I answer."


def _given(messages: Sequence[Message]) -> list[dict[str, Any]]:
    return [{"role": each.role, "content": each.content} for each in messages]
