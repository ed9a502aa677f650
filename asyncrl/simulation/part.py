"""A large run is modelled by a part of it: how large that is, and what the rest of a batch changes."""

import msgspec

from asyncrl.core.recipe.schema import Recipe
from asyncrl.simulation.episodes import ModelEpisode, ModelEpisodes, uniform
from asyncrl.simulation.rates import EngineRates

LEAST_ENGINES, LEAST_EPISODES = 8, 256
"""A run with several times as many engines, and episodes in a batch, is modelled by one of so many."""


class Part(msgspec.Struct, frozen=True):
    """What is modelled of a run. A batch and a pool of a tenth have the same rates and the same staleness, as long as neither is
    small; the learner's ranks are as many times fewer.

    Attributes:
        engines: the share of the engines.
        groups: groups of a batch.
        left_out: groups of a whole batch beside them.
    """

    engines: float
    groups: int
    left_out: int

    @property
    def scale(self) -> float:
        """Engines and batch are so many times as large in the run that is modelled."""
        return (self.groups + self.left_out) / self.groups


def part_of(recipe: Recipe) -> Part:
    """Return how much of a run is modelled: all of a small one."""
    engines = sum(pool.count for pool in recipe.generators.training.values())
    groups = recipe.batch.groups_per_step
    times = max(1, min(engines // LEAST_ENGINES, groups * recipe.batch.group_size // LEAST_EPISODES))
    share = max(1, round(engines / times)) / engines
    own = max(1, round(groups * share))
    return Part(share, own, groups - own)


class LongestEpisodes:
    """The longest episode of a whole batch, for which synchronous training waits: in a part of the batch the longest is shorter.

    It is as if it had begun with the part's longest, and had gone on alone after its end. The longest of ``n`` groups is at
    the quantile ``u ** (1 / n)`` of groups, for a uniform ``u``; that of a group is the longest one that was played of it.
    """

    def __init__(self, episodes: ModelEpisodes, engine: EngineRates, group_size: int, left_out: int, seed: int) -> None:
        self._episodes, self._engine, self._seed = episodes, engine, seed
        self._others = left_out * (1 if episodes.correlated else group_size)
        groups = episodes.played if episodes.correlated else [[episode] for episode in episodes.all]
        self._longest = sorted(max(map(self._alone, group)) for group in groups)
        self._own = (0.0, 0.0)

    def finished(self, group_id: int, sample_index: int, now: float) -> None:
        """Take in an episode of the part."""
        self._own = max(self._own, (self._alone(self._episodes.draw(self._seed, group_id, sample_index)), now))

    def later(self, step: int, now: float) -> float:
        """Return for how many seconds longer than the part, which is over now, the whole batch is played."""
        place = int(uniform(self._seed, step, 4) ** (1 / self._others) * len(self._longest))
        own, ended = self._own
        self._own = (0.0, 0.0)
        return max(0.0, ended + self._longest[min(place, len(self._longest) - 1)] - own - now)

    def _alone(self, episode: ModelEpisode) -> float:
        """Seconds that an episode takes in an engine that has nothing else to do."""
        rates = self._engine
        token = rates.step.value + rates.request.value
        seconds, context = episode.reset_s + episode.score_s, 0
        for turn in episode.turns:
            context += turn.given
            seconds += turn.given * rates.prompt_token.value + turn.environment_s + rates.turn.value
            seconds += turn.sampled * (token + (context + turn.sampled / 2) * rates.context_token.value)
            context += turn.sampled
        return seconds
