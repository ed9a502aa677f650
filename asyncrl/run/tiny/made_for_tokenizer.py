"""Makes a tiny model with a tokenizer and a chat template that others have made, so that they can be tried where their weights
cannot: it is warmed up on the lessons of a recipe's environments, as the model ``tiny`` is.

What always holds: the folder appears whole or not at all.
"""

import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from asyncrl.core.errors import RecipeError
from asyncrl.core.recipe.schema import Recipe
from asyncrl.core.task import Task
from asyncrl.run.models.chat_template import write_templates
from asyncrl.run.tiny.chat_voice import ChatVoice
from asyncrl.run.tiny.lessons import players_of
from asyncrl.run.tiny.player import Player, play_greedily
from generators.chat_format import ChatFormat
from learners.tiny.settings import WarmUp

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
    from learners.tiny.making import make  # takes seconds: it needs torch

    if folder.exists():
        raise RecipeError("--to", f"{folder} exists already", "name a folder that does not exist yet")
    if not folder.parent.is_dir():
        raise RecipeError("--to", f"{folder.parent} is no folder", "make it first, or name another")
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
