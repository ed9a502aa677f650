"""The training steps by which a setting is measured: its rate, how sure that is, and which limits it keeps to."""

from collections import deque
from collections.abc import Iterable, Iterator

import msgspec

from asyncrl.core.recipe.tune import TuneLimitsConfig


class Seen(msgspec.Struct, frozen=True):
    """A training step, as far as tuning looks at it.

    Attributes:
        step: its number.
        tokens, episodes, seconds: what it trained, and how long it took.
        staleness_mean, sample_size, clip_share: as in :class:`asyncrl.core.recipe.tune.TuneLimitsConfig`; the last two are None
            where the step did not say.
    """

    step: int
    tokens: int
    episodes: int
    seconds: float
    staleness_mean: float
    sample_size: float | None = None
    clip_share: float | None = None


class Window:
    """Steps of one setting, in order; beyond ``most`` the oldest are forgotten."""

    def __init__(self, most: int, steps: Iterable[Seen] = ()) -> None:
        self._steps = deque(steps, maxlen=most)

    def add(self, seen: Seen) -> None:
        """Take in a step."""
        self._steps.append(seen)

    def __len__(self) -> int:
        return len(self._steps)

    def __iter__(self) -> Iterator[Seen]:
        return iter(self._steps)

    @property
    def first(self) -> int:
        """The number of the oldest step."""
        return self._steps[0].step

    @property
    def rate(self) -> float:
        """Trained tokens a second."""
        return sum(each.tokens for each in self) / max(1e-9, sum(each.seconds for each in self))

    @property
    def error(self) -> float:
        """The relative standard error of :attr:`rate`: that of a quotient of sums (Cochran, Sampling Techniques, 1977, 2.11)."""
        count, rate = len(self), self.rate
        if count < 2 or rate <= 0:
            return 1.0
        squares = sum((each.tokens - rate * each.seconds) ** 2 for each in self)
        return float((squares * count / (count - 1)) ** 0.5 / max(1, sum(each.tokens for each in self)))

    @property
    def length(self) -> float:
        """Mean tokens of a trained episode."""
        return sum(each.tokens for each in self) / max(1, sum(each.episodes for each in self))

    @property
    def staleness(self) -> float:
        """Mean staleness."""
        return self._mean("staleness_mean") or 0.0

    def _mean(self, name: str) -> float | None:
        known = [value for each in self if (value := getattr(each, name)) is not None]
        return sum(known) / len(known) if known else None

    def broken(self, limits: TuneLimitsConfig) -> dict[str, float]:
        """By how much the setting is beyond each limit that it does not keep to, by the limit's name."""
        found: dict[str, float] = {}
        for name in limits.__struct_fields__:
            limit, mean = getattr(limits, name), self._mean(name)
            if limit is not None and mean is not None:
                beyond = limit - mean if name == "sample_size" else mean - limit
                if beyond > 0:
                    found[name] = beyond
        return found
