"""Files of rates, written by hand: what ``asyncrl plan --rates`` reads. docs/how-to/planning.md describes them."""

import math
from collections.abc import Hashable
from pathlib import Path
from statistics import NormalDist
from typing import Any

import msgspec
import yaml

from asyncrl.core.errors import RecipeError
from asyncrl.planning.hardware import Hardware
from asyncrl.planning.kept_episodes import Kept
from asyncrl.simulation.episodes import ModelEpisode, ModelEpisodes, ModelTurn, uniform
from asyncrl.simulation.rates import (
    NOTHING,
    EngineRates,
    FailureRates,
    LearnerRates,
    MachineRates,
    PublicationRates,
    Rate,
)

SHIPPED = Path(__file__).parent / "rates"
_DIVISORS = (
    *("peak_flops", "memory_bandwidth", "learner_mfu", "prefill_mfu", "decode_bandwidth"),
    *("publication_bandwidth", "reduce_bandwidth"),
)
"""Figures by which others are divided."""
_COUNTS = ("block_tokens", "step_tokens", "ranks")
_SPREADS = ("spread", "environment_spread")
_MOST_SPREAD, _MOST_TURNS = 5, 1000
_GROUPS, _GROUP = 256, 16
"""How many groups of episodes are made, and how many episodes in each."""


class EpisodeShape(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Lengths of episodes, where no played ones are at hand. Sampled tokens are log-normal, and cut off at ``most``.

    Attributes:
        prompt: tokens of a prompt.
        sampled: tokens that the policy samples in an episode, on average before they are cut off.
        spread: the standard deviation of their logarithm.
        most: where they are cut off, as by ``model.max_context``; 0 for nowhere.
        of_task: the share of that variance that the episodes of a task have in common, in [0, 1].
        turns: turns of an episode.
        given: tokens of the environment's answer to each turn but the last.
        environment_s: seconds that it takes, on average; log-normal, with ``environment_spread``.
    """

    prompt: Rate
    sampled: Rate
    spread: Rate = NOTHING
    most: Rate = NOTHING
    of_task: Rate = NOTHING
    turns: Rate = Rate(1, "one turn")
    given: Rate = NOTHING
    environment_s: Rate = NOTHING
    environment_spread: Rate = NOTHING

    def episodes(self) -> ModelEpisodes:
        """Make episodes of this shape, the same each time."""
        return ModelEpisodes([[self._episode(group, sample) for sample in range(_GROUP)] for group in range(_GROUPS)])

    def _episode(self, group: int, sample: int) -> ModelEpisode:
        common = math.sqrt(self.of_task.value) * _normal(group, 1)
        normal = common + math.sqrt(1 - self.of_task.value) * _normal(group, sample, 2)
        sampled = self.sampled.value * math.exp(self.spread.value * normal - self.spread.value**2 / 2)
        turns = max(1, round(self.turns.value))
        tokens = max(turns, round(min(sampled, self.most.value or math.inf)))
        return ModelEpisode(
            tuple(
                ModelTurn(
                    round(self.given.value if turn else self.prompt.value),
                    tokens // turns + (turn < tokens % turns),
                    self._environment_s(group, sample, turn) if turn + 1 < turns or turns == 1 else 0.0,
                )
                for turn in range(turns)
            )
        )

    def _environment_s(self, group: int, sample: int, turn: int) -> float:
        spread = self.environment_spread.value
        return self.environment_s.value * math.exp(spread * _normal(group, sample, turn, 3) - spread**2 / 2)

    def kept(self) -> Kept:
        """Return the episodes as if a run had kept them."""
        made = self.episodes()
        turns = [turn for episode in made.all for turn in episode.turns]
        waits = sum(turn.environment_s for turn in turns) / len(turns)
        return Kept(made, len(made.all), _GROUPS, waits, 0.0, 0.0, len(turns) / len(made.all), _GROUPS)


class RatesFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a file holds: rates themselves, in ``engine``, ``learner`` and ``publication``, or ``hardware`` to compute them from.

    Attributes:
        device: the kind of device that it is of.
        about: what a reader should know.
        cores: processor cores of a machine.
        gpus_a_node: GPUs of a machine.
        episodes: lengths of episodes, for whoever has no run.
    """

    device: str
    about: str = ""
    cores: int = 96
    gpus_a_node: int = 8
    engine: EngineRates | None = None
    learner: LearnerRates | None = None
    publication: PublicationRates | None = None
    machine: MachineRates = MachineRates()
    failures: FailureRates = FailureRates()
    hardware: Hardware | None = None
    episodes: EpisodeShape | None = None


def read_rates(name: str) -> RatesFile:
    """Read a file of rates, or the shipped one of that name.

    Raises:
        RecipeError: there is none, it cannot be read, or a figure is missing, unknown or of another kind.
    """
    shipped = {path.stem: path for path in sorted(SHIPPED.glob("*.yaml"))}
    path = shipped.get(name, Path(name))
    try:
        found = msgspec.convert(yaml.load(path.read_bytes(), _Loader), RatesFile, strict=False)
    except OSError as error:
        remedy = f"give the path of a file, or one of the shipped: {', '.join(shipped)}"
        raise RecipeError("--rates", f"cannot read {name!r}: {error.strerror}", remedy) from error
    except (yaml.YAMLError, msgspec.ValidationError, ValueError, RecursionError) as error:  # a value may be no date, or no number
        raise RecipeError("--rates", f"{name!r} is no file of rates: {error}", "see docs/how-to/planning.md") from error
    whole = found.engine and found.learner and found.publication
    if bool(whole) == bool(found.hardware):
        problem = f"{name!r} must hold either hardware, or all of engine, learner and publication"
        raise RecipeError("--rates", problem, "docs/how-to/planning.md lists the keys of each")
    for key in ("cores", "gpus_a_node"):
        if (value := getattr(found, key)) < 1:
            raise RecipeError("--rates", f"{key} of {name!r} is {value}", "give a number of at least 1")
    sections = (found.engine, found.learner, found.publication, found.machine, found.failures, found.hardware, found.episodes)
    for section in sections:
        if section is not None:
            _check(name, section)
    if found.engine is not None and not found.engine.step.value + found.engine.request.value:
        problem = f"step and request of engine in {name!r} are both 0, so that an engine would sample in no time at all"
        raise RecipeError("--rates", problem, "give at least one of them a number above 0")
    return found


class _Loader(yaml.SafeLoader):  # type: ignore[misc]
    """Reads plain values, and refuses a key that is given twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        """Read the values of a section.

        Raises:
            ConstructorError: a key is given twice.
        """
        given = [key.value for key, _ in node.value]
        for key, _ in node.value:
            if given.count(key.value) > 1:
                raise yaml.constructor.ConstructorError(problem=f"{key.value!r} is given twice", problem_mark=key.start_mark)
        found: dict[Hashable, Any] = super().construct_mapping(node, deep)
        return found


def _check(name: str, section: msgspec.Struct) -> None:
    for key in section.__struct_fields__:
        rate: Rate = getattr(section, key)
        allowed, wanted = _allowed(key, rate.value)
        if not math.isfinite(rate.value) or not allowed:
            raise RecipeError("--rates", f"{key} of {name!r} is {rate.value:g}", f"give {wanted}")
        if rate.error is not None and not 0 <= rate.error < math.inf:
            raise RecipeError("--rates", f"error of {key} of {name!r} is {rate.error:g}", "give a share of at least 0")
        if rate.measured is not None and not 0 <= rate.measured[0] <= rate.measured[1] < math.inf:
            problem = f"measured of {key} of {name!r} is [{rate.measured[0]:g}, {rate.measured[1]:g}]"
            raise RecipeError("--rates", problem, "give the smallest and the largest size, in this order")


def _allowed(key: str, value: float) -> tuple[bool, str]:
    """Whether a figure may have a value, and what it may have."""
    if key in _DIVISORS:
        return value > 0, "a number above 0"
    if key in _COUNTS:
        return value >= 1, "a number of at least 1"
    if key in _SPREADS:
        return 0 <= value <= _MOST_SPREAD, f"a standard deviation of logarithms in [0, {_MOST_SPREAD}]"
    if key == "turns":
        return 0 <= value <= _MOST_TURNS, f"a number of at most {_MOST_TURNS:,}"
    if key == "of_task":
        return 0 <= value <= 1, "a share in [0, 1]"
    if key == "broken":
        return 0 <= value < 1, "a share below 1: if every episode breaks, no batch is ever full"
    return value >= 0, "a number of at least 0"


def _normal(*key: int) -> float:
    """A number from the normal distribution, a pure function of the key."""
    return NormalDist().inv_cdf(min(max(uniform(*key), 1e-12), 1 - 1e-12))
