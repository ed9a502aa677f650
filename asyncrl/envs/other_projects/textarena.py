"""Games of TextArena for one player: ``asyncrl env serve Wordle-v0 --from textarena``.

Each turn of the model is an action, as the game's rules ask for it; what the game answers is the next message of the user.
"""

import random
import threading
from collections.abc import Callable
from typing import Any, TypeVar

import textarena

from asyncrl.core.errors import EnvironmentBroken, RecipeError
from asyncrl.core.messages import Message
from asyncrl.core.task import Task
from asyncrl.core.text import short
from asyncrl.envs.base import Action, Fault, Observation, StepResult
from asyncrl.envs.other_projects.playing import Seeded, numbers, without_tools

T = TypeVar("T")

PLAYER = 0
_RAW = "-raw"
"""What the id of a game ends with whose observations nothing rewrites."""
_SHOWN = 120
"""The most characters of an error that are shown."""
_random = threading.Lock()


class TextArena(Seeded):
    """A game of TextArena.

    Args:
        name: its id, such as ``Wordle-v0``.
        arguments: keyword arguments of the game.
        system_prompt: the system message; none if empty.
    """

    def __init__(self, name: str, arguments: dict[str, Any] = {}, system_prompt: str = "") -> None:  # noqa: B006 - never changed
        self._name, self._arguments, self._system_prompt = name, arguments, system_prompt
        self._game: Any = None
        self._drawn: object = None

    @classmethod
    def check(cls, **options: Any) -> None:
        """Begin the game once."""
        name = options["name"]
        if name not in textarena.envs.registration.ENV_REGISTRY:
            raise RecipeError(
                "environment.options.name", f"TextArena has no game {name!r}", "see textarena.pprint_registry_detailed()"
            )
        arguments, made = options.get("arguments", {}), False
        try:
            game = _made(name, arguments)
            made = True
            game.reset(num_players=1, seed=0)
        except LookupError as error:  # of nltk, with a page of folders
            remedy = "bring its words where the server runs: `python -m nltk.downloader words averaged_perceptron_tagger_eng`"
            if "nltk" not in str(error):
                remedy = "name another game, or correct its arguments"
            problem = f"{name} lacks something: {' '.join(str(error).replace('*', '').split())[:_SHOWN]}"
            raise RecipeError("environment.options.name", problem, remedy) from error
        except Exception as error:  # each game refuses in its own way
            problem = f"{name} cannot be {'played by one player' if made else 'made'}: {type(error).__name__}: {error}"
            remedy = "name a game for one, such as Wordle-v0 or Sudoku-v0" if made else f"correct its arguments ({arguments})"
            raise RecipeError("environment.options.name", problem, remedy) from error

    async def reset(self, task: Task) -> Observation:
        """Begin a game with the task's seed."""
        self._game = _made(self._name, self._arguments)
        text = await self.blocking(self._alone, lambda: self._begun(task.data.get("seed")))
        system = (Message("system", self._system_prompt),) if self._system_prompt else ()
        return Observation((*system, Message("user", text)))

    async def step(self, action: Action) -> StepResult:
        """Play a turn."""
        if action.calls:
            return without_tools(action)
        try:
            done, text = await self.blocking(self._alone, lambda: self._played(action.content))
        except (ValueError, ArithmeticError, IndexError, KeyError) as error:  # all but the text is the game's own
            told = f"error: the game cannot read this: {short(str(error))}"
            return StepResult(Observation((Message("user", told),)), 0.0, False, fault=Fault.MALFORMED_CALL)
        if not done:
            return StepResult(Observation((Message("user", text),)), 0.0, False)
        rewards, infos = await self.blocking(self._alone, self._game.close)
        if PLAYER not in (rewards or {}):
            raise EnvironmentBroken(f"{self._name} ended and gave its player no reward, only {rewards}; play another game")
        return StepResult(Observation(()), float(rewards[PLAYER]), True, numbers((infos or {}).get(PLAYER, {})))

    def _begun(self, seed: int | None) -> str:
        random.seed(seed)
        self._game.reset(num_players=1, seed=seed)
        return self._seen()

    def _played(self, text: str) -> tuple[bool, str]:
        done, _ = self._game.step(action=text)
        return bool(done), "" if done else self._seen()

    def _seen(self) -> str:
        _, seen = self._game.get_observation()
        if isinstance(seen, str):
            return seen
        own = textarena.ObservationType.PLAYER_ACTION
        return "\n\n".join(str(text).strip() for _, text, kind in seen if kind is not own)

    def _alone(self, call: Callable[[], T]) -> T:
        """Make a call while no other game draws: all draw from Python's one generator, and each has its own state of it."""
        with _random:
            before = random.getstate()
            if self._drawn is not None:
                random.setstate(self._drawn)  # type: ignore[arg-type]
            try:
                return call()
            finally:
                self._drawn = random.getstate()
                random.setstate(before)


def _made(name: str, arguments: dict[str, Any]) -> Any:
    raw = name if name.endswith(_RAW) or f"{name}{_RAW}" not in textarena.envs.registration.ENV_REGISTRY else f"{name}{_RAW}"
    return textarena.make(raw, **arguments)
