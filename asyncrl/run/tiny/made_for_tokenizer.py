"""Makes a tiny model with a tokenizer and a chat template that others have made, so that they can be tried where their weights
cannot: it is warmed up on the lessons of a recipe's environments, as the model ``tiny`` is.

What always holds: the folder appears whole or not at all.

Tells demonstrations in a tokenizer and a chat template that others have made.

What always holds: a row is what an episode would be in which the policy says what was demonstrated, token for token, since it is
put together by the same code.
"""

import asyncio
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from asyncrl.core.errors import AsyncRLError
from asyncrl.core.files.model_copies import check_can_be_made
from asyncrl.core.messages import Message
from asyncrl.core.recipe.schema import Recipe
from asyncrl.core.task import Task
from asyncrl.envs.lessons.demonstrations import Demonstration
from asyncrl.generators.chat_format import ChatFormat
from asyncrl.learners.tiny.conversations import Example, calling
from asyncrl.learners.tiny.settings import WarmUp
from asyncrl.run.models.template_facts import write_templates
from asyncrl.run.tiny.lessons import players_of
from asyncrl.run.tiny.player import Player, play_greedily

_TURN_TOKENS = 128
"""Tokens that a turn of every lesson has room for, with a thought before it."""


def make_for_tokenizer(recipe: Recipe, folder: Path, settings: WarmUp, progress: Callable[[float, str], None]) -> None:
    """Make a tiny model in ``folder`` with the tokenizer in the folder that the recipe's ``model.path`` names.

    Args:
        recipe: its environments are those that the model is warmed up on; its section ``model`` says how turns are written and
            read.
        progress: called with a share in [0, 1] and a text.

    Raises:
        RecipeError: there is something at ``folder``, its parent does not exist, or an environment has no lessons.
        TemplateUnsuitable: there is no tokenizer, or its chat template does not suit.
        CannotTell: the lessons cannot be told with the chat template.
        WarmUpFailed: the warm-up did not teach the model what it should.
    """
    from asyncrl.learners.tiny.making import make  # takes seconds: it needs torch

    check_can_be_made(folder)
    model = recipe.model
    chat = ChatFormat.load(model.path, model)
    players = {name: _roomy(player, settings) for name, player in players_of(recipe).items()}
    # Values of variables are the recipe's: the model is to be one whose template reads them.
    own = msgspec.structs.replace(model, chat_template_kwargs={})

    def judge(made: Path, tasks: Mapping[str, Sequence[Task]]) -> dict[str, list[float]]:
        write_templates(made, own)
        return play_greedily(made, players, model, tasks)

    environments = {name: player.environment for name, player in players.items()}
    voice = ChatVoice(chat, thinks=model.reasoning_parser is not None)
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as making:
        made = Path(making) / "model"
        made.mkdir()
        make(made, environments, recipe.seed, settings, progress, judge, voice)
        shutil.copystat(folder.parent, made)
        made.rename(folder)


def _roomy(player: Player, settings: WarmUp) -> Player:
    limits = player.limits.widened(
        max_turns=player.limits.max_turns, max_turn_tokens=_TURN_TOKENS, max_context=settings.size.context
    )
    return msgspec.structs.replace(player, limits=limits)


if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class CannotTell(AsyncRLError):
    """A demonstration cannot be told with a chat template."""


class ChatVoice:
    """Tells demonstrations in a model's chat format; see :class:`asyncrl.learners.tiny.making.Voice`.

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
