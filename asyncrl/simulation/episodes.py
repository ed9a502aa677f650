"""The episodes of a modelled run: drawn whole from played ones, so that lengths, turns and latencies keep their correlations."""

from collections.abc import Callable, Sequence
from functools import cached_property

import msgspec

from asyncrl.buffers.tasks.task_stream import TaskSource, TaskStream
from asyncrl.core.ids import TaskId
from asyncrl.core.splitmix import STEP, WHOLE, mixed
from asyncrl.core.task import Task


class ModelTurn(msgspec.Struct, frozen=True, array_like=True):
    """One turn.

    Attributes:
        given: tokens that nobody sampled, before the turn: of the first, the prompt.
        sampled: tokens that the policy samples, at least 1.
        environment_s: seconds until the environment has reacted to it.
    """

    given: int
    sampled: int
    environment_s: float = 0.0


class ModelEpisode(msgspec.Struct, frozen=True, dict=True):
    """One played episode.

    Attributes:
        turns: its turns, at least one.
        reset_s: seconds until its environment is ready.
        score_s: seconds that it waits for a reward model's score once it is over.
        given_last: tokens that nobody sampled after the last turn.
    """

    turns: tuple[ModelTurn, ...]
    reset_s: float = 0.0
    score_s: float = 0.0
    given_last: int = 0

    @property
    def prompt(self) -> int:
        """Tokens of the prompt."""
        return self.turns[0].given

    @cached_property
    def length(self) -> int:
        """Tokens of the trajectory."""
        return sum([turn.given + turn.sampled for turn in self.turns]) + self.given_last


class ModelEpisodes:
    """Draws episodes. A draw is a pure function of seed, group and sample: an episode that is issued again is the same.

    Args:
        groups: played episodes by group, at least one episode in all. Where most groups have several, a group is drawn first and
            then its episodes, which keeps the correlation that their task gives them; else each episode is drawn by itself.
        preamble: tokens that all prompts begin with.

    Attributes:
        correlated: whether a group is drawn first.
        played, all: the played episodes, by group and together.
    """

    def __init__(self, groups: Sequence[Sequence[ModelEpisode]], preamble: int = 0) -> None:
        several = [group for group in groups if len(group) > 1]
        self.correlated = 2 * len(several) > len(groups)
        everyone = [episode for group in groups for episode in group]
        self._groups = several if self.correlated else [everyone]
        self.all, self.preamble, self.played = everyone, preamble, groups

    def draw(self, seed: int, group_id: int, sample_index: int) -> ModelEpisode:
        """Return the episode of a sample."""
        group = self._groups[random_bits(seed, group_id) % len(self._groups)]
        return group[random_bits(seed, group_id, sample_index) % len(group)]

    def changed(self, change: Callable[[ModelEpisode], ModelEpisode]) -> "ModelEpisodes":
        """Return the same groups with each episode as ``change`` makes it."""
        groups = [[change(episode) for episode in group] for group in self.played]
        shortest = min(episode.prompt for group in groups for episode in group)
        return ModelEpisodes(groups, min(self.preamble, shortest))

    @property
    def mean_length(self) -> float:
        """Mean tokens of an episode."""
        return sum(episode.length for episode in self.all) / len(self.all)


class Held(msgspec.Struct, frozen=True):
    """What is played beside training.

    Attributes:
        episodes: played episodes of evaluations, from which those of further ones are drawn.
        count: episodes of one evaluation.
    """

    episodes: ModelEpisodes | None = None
    count: int = 0


NOTHING_HELD = Held()


def random_bits(*key: int) -> int:
    """Return 64 bits, a pure function of the key."""
    number = 0
    for part in key:
        number = mixed((number ^ part) + STEP & WHOLE)
    return int(number)


def uniform(*key: int) -> float:
    """Return a number in [0, 1), a pure function of the key."""
    return (random_bits(*key) >> 11) * 2.0**-53


def simulated_tasks(number: int, seed: int) -> TaskStream:
    """Make a stream of ``number`` tasks from one source."""
    tasks = [Task(id=TaskId(f"task-{i}"), prompt="", data={"number": i}) for i in range(number)]
    return TaskStream([TaskSource("simulated", tasks)], seed)
