"""Samplers: they choose which ready groups are trained next, and how much their loss terms weigh.

What always holds: a sampler is a pure function of its arguments (all randomness comes from ``rng``); it samples ``n`` different
ready groups; a group is consumed at its last permitted use at the latest.
"""

import math
import random
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from itertools import accumulate, pairwise
from typing import Protocol, cast

import msgspec

from asyncrl.buffers.ready import Ready, ReadyGroup
from asyncrl.core.errors import AsyncRLError, RecipeError
from asyncrl.core.ids import GroupId, PolicyVersion
from asyncrl.core.plug_ins.plug_in import load_class, users_code
from asyncrl.core.recipe.buffer import (
    BufferConfig,
    CustomSamplerConfig,
    FifoSamplerConfig,
    FreshestSamplerConfig,
    PrioritisedSamplerConfig,
    StratifiedSamplerConfig,
)


class Selection(msgspec.Struct, frozen=True):
    """The choice of a sampler.

    Attributes:
        sampled: the chosen groups, in the order in which they are handed out.
        consumed: those of them that will not be trained again.
        weights: factor of each sampled group's loss terms, in the order of ``sampled``; 1 where the sampler needs none.
    """

    sampled: tuple[GroupId, ...]
    consumed: tuple[GroupId, ...]
    weights: tuple[float, ...]


class Sampler(Protocol):
    """The method that a sampler must have."""

    def sample(self, ready: Ready, n: int, version: PolicyVersion, rng: random.Random) -> Selection:
        """Choose ``n`` of the ready groups.

        Args:
            ready: mapping of group ids to ``ready.ReadyGroup``, oldest group first; a sampler must not change it.
            n: number of groups, from 0 to ``len(ready)``.
            version: the policy version that will be trained.
            rng: seeded from the recipe's seed and ``version``; the only randomness that a sampler may use.
        """


class BadSelection(AsyncRLError):
    """A user-defined sampler raised an error, or returned a selection that breaks its contract."""


def make_sampler(buffer: BufferConfig, source_weights: Mapping[str, float]) -> Sampler:
    """Make the sampler that section ``buffer`` of the recipe names.

    Args:
        source_weights: weight of each task source, by name.

    Raises:
        RecipeError: a user-defined sampler cannot be loaded, or has no method ``sample``.
    """
    max_reuse = buffer.max_reuse
    match buffer.sampler:
        case FifoSamplerConfig():
            return Fifo(max_reuse)
        case FreshestSamplerConfig():
            return Freshest(max_reuse)
        case PrioritisedSamplerConfig() as options:
            return Prioritised(options, max_reuse)
        case StratifiedSamplerConfig():
            return Stratified(source_weights, max_reuse)
        case CustomSamplerConfig() as options:
            return Checked(_load(options), options.name, max_reuse)


class Fifo:
    """Chooses the oldest groups."""

    def __init__(self, max_reuse: int) -> None:
        self._max_reuse = max_reuse

    def sample(self, ready: Ready, n: int, version: PolicyVersion, rng: random.Random) -> Selection:
        """Choose the ``n`` oldest groups."""
        return _plain(ready, ready.oldest(n), self._max_reuse)


class Freshest:
    """Chooses the groups with the newest tokens; among equals those with the newest oldest token, then the newest groups."""

    def __init__(self, max_reuse: int) -> None:
        self._max_reuse = max_reuse

    def sample(self, ready: Ready, n: int, version: PolicyVersion, rng: random.Random) -> Selection:
        """Choose the ``n`` groups with the newest tokens."""
        newest_first = sorted(ready.values(), key=lambda g: (g.newest_sampled, g.oldest_sampled, g.group_id), reverse=True)
        return _plain(ready, [group.group_id for group in newest_first[:n]], self._max_reuse)


class Prioritised:
    """Chooses with probability proportional to priority, without replacement, and returns weights that correct for it.

    Priorities follow Schaul et al. 2016, "Prioritized Experience Replay" (arXiv:1511.05952); there, transitions are drawn with
    replacement and the correction is annealed. Here the inclusion probabilities ``pi`` are exact (``buffers/sampling.py``) and
    so are the weights ``n / (N * pi)``: the mean of ``weight * x`` over the ``n`` sampled groups is an unbiased estimate of the
    mean of ``x`` over all ``N`` ready ones (Horvitz and Thompson 1952, "A generalization of sampling without replacement from a
    finite universe"). Groups lie on the line oldest first, so a sample is also spread evenly over the ages. ``on_stale:
    wait`` forces groups into batches whatever is drawn, so the recipe refuses the two together.
    """

    _RESOLUTION = 2**32
    """Priorities are rounded to this many steps of the largest, so that the rest of the arithmetic is exact."""

    def __init__(self, options: PrioritisedSamplerConfig, max_reuse: int) -> None:
        self._options, self._max_reuse = options, max_reuse

    def sample(self, ready: Ready, n: int, version: PolicyVersion, rng: random.Random) -> Selection:
        """Draw ``n`` groups by their priority."""
        if n == 0:
            return Selection((), (), ())
        groups = list(ready.values())
        probabilities = inclusion_probabilities(self.sizes(groups, version), n)
        sizes = _common_integers(probabilities)
        hits = systematic_hits(sizes, n, rng.randrange(sum(sizes)))
        sampled = [(group.group_id, p) for group, p, hit in zip(groups, probabilities, hits, strict=True) if hit]
        chosen = tuple(group_id for group_id, _ in sampled)
        weights = tuple(float(n / (len(groups) * p)) for _, p in sampled)
        return Selection(chosen, _used_up(ready, chosen, self._max_reuse), weights)

    def sizes(self, groups: Sequence[ReadyGroup], version: PolicyVersion) -> list[int]:
        """Return priorities as integers from 1 to ``2**32``. Logarithms prevent overflow by large exponents and ages."""
        options = self._options
        logs = [
            options.exponent * math.log(group.advantage + options.floor)
            + (version - group.oldest_sampled) * math.log(options.staleness_decay)
            for group in groups
        ]
        largest = max(logs)
        return [max(1, round(math.exp(log - largest) * self._RESOLUTION)) for log in logs]


class Stratified:
    """Gives each task source its share of the ``n`` groups, rounded down or up, and chooses the oldest groups of each source.

    Which shares are rounded up changes with the version (a systematic sample whose start takes steps of the golden ratio), so
    over time each source gets its share without any state. Where a source has too few groups, the oldest of others fill in.

    Args:
        weights: weight of each source, by name; other sources are only used to fill in.
    """

    _GOLDEN = 2654435769
    """``2**32`` divided by the golden ratio, odd: multiples of it are spread evenly over ``2**32``."""

    def __init__(self, weights: Mapping[str, float], max_reuse: int) -> None:
        self._sources = tuple(weights)
        self._sizes = _common_integers([Fraction(weight) for weight in weights.values()])
        self._max_reuse = max_reuse

    def sample(self, ready: Ready, n: int, version: PolicyVersion, rng: random.Random) -> Selection:
        """Choose ``n`` groups by the shares of their sources."""
        left = self.quotas(n, version)
        chosen, passed_over = [], []
        for group in ready.values():
            if left.get(group.source, 0):
                left[group.source] -= 1
                chosen.append(group.group_id)
                if len(chosen) == n:
                    break
            else:
                passed_over.append(group.group_id)
        filled = chosen + passed_over[: n - len(chosen)]
        return _plain(ready, sorted(filled), self._max_reuse)

    def quotas(self, n: int, version: PolicyVersion) -> dict[str, int]:
        """Return how many of ``n`` groups come from each source at ``version``; they add up to ``n``."""
        start = version * self._GOLDEN % 2**32 * sum(self._sizes) // 2**32
        return dict(zip(self._sources, systematic_hits(self._sizes, n, start), strict=True))


class Checked:
    """Checks the selections of a user-defined sampler before they are used."""

    def __init__(self, sampler: Sampler, name: str, max_reuse: int) -> None:
        self._sampler, self._name, self._max_reuse = sampler, name, max_reuse

    def sample(self, ready: Ready, n: int, version: PolicyVersion, rng: random.Random) -> Selection:
        """Have the user-defined sampler choose, and check what it chose.

        Raises:
            BadSelection: the selection breaks the contract, or the sampler raised an error.
        """
        try:
            selection = self._sampler.sample(ready, n, version, rng)
        except Exception as error:
            # The class is user-defined, so it may raise anything.
            raise BadSelection(
                f"buffer.sampler {self._name}: sample raised {type(error).__name__}: {error}; correct that class"
            ) from error
        if problem := self._problem(selection, ready, n):
            raise BadSelection(f"buffer.sampler {self._name}: {problem}; see asyncrl.buffers.sampling.Selection")
        return selection

    def _problem(self, selection: object, ready: Ready, n: int) -> str:
        if not isinstance(selection, Selection):
            return f"sample returned {type(selection).__name__}, not a Selection"
        sampled = set(selection.sampled)
        if len(selection.sampled) != n or len(sampled) != n:
            return f"{n} different groups were wanted, {len(selection.sampled)} were sampled, {len(sampled)} of them different"
        if unknown := sorted(sampled - ready.keys()):
            return f"groups {unknown} were sampled and are not ready"
        if stray := sorted(set(selection.consumed) - sampled):
            return f"groups {stray} were consumed and not sampled"
        used_up = set(_used_up(ready, selection.sampled, self._max_reuse))
        if kept := sorted(used_up - set(selection.consumed)):
            return f"groups {kept} would be kept beyond buffer.max_reuse {self._max_reuse}; consume them"
        if len(selection.weights) != n or not all(math.isfinite(w) and w >= 0 for w in selection.weights):
            return f"weights must be {n} finite numbers of at least 0, got {selection.weights}"
        return ""


def _plain(ready: Ready, sampled: Iterable[GroupId], max_reuse: int) -> Selection:
    chosen = tuple(sampled)
    return Selection(chosen, _used_up(ready, chosen, max_reuse), (1.0,) * len(chosen))


def _used_up(ready: Ready, sampled: Iterable[GroupId], max_reuse: int) -> tuple[GroupId, ...]:
    return tuple(group_id for group_id in sampled if ready[group_id].uses + 1 >= max_reuse)


def _common_integers(numbers: Sequence[Fraction]) -> list[int]:
    """Multiply the numbers by their least common denominator."""
    denominator = math.lcm(*(number.denominator for number in numbers))
    return [int(number * denominator) for number in numbers]


def _load(options: CustomSamplerConfig) -> Sampler:
    place = "buffer.sampler.name"
    loaded = load_class(options.name, place)
    if not callable(getattr(loaded, "sample", None)):
        raise RecipeError(
            place, f"{options.name} has no method `sample`", "define the method of asyncrl.buffers.sampling.Sampler"
        )
    problem = f"{options.name} refuses {options.options}:"
    with users_code(problem, "buffer.sampler.options", "give options that its constructor accepts"):
        return cast(Sampler, loaded(**options.options))


def systematic_hits(sizes: Sequence[int], n: int, start: int) -> list[int]:
    """Return how often each interval is hit: systematic sampling with probability proportional to size, in exact integers.

    ``n`` points at equal distances, the first at a random ``start``, are laid over intervals as long as the sizes. What always
    holds, for every start: there are exactly ``n`` hits in all, and interval ``i`` is hit ``n * sizes[i] / sum(sizes)`` times,
    rounded down or up; over all starts, exactly that often on average (Madow 1949, "On the theory of systematic sampling, II").

    Args:
        sizes: lengths of the intervals, not negative, not all 0.
        n: number of points.
        start: the first point, in ``[0, sum(sizes))``; intervals are ``n * size`` long and points ``sum(sizes)`` apart.
    """
    distance = sum(sizes)
    before = [-((start - n * end) // distance) for end in accumulate(sizes, initial=0)]
    return [below_end - below_start for below_start, below_end in pairwise(before)]


def inclusion_probabilities(sizes: Sequence[int], n: int) -> list[Fraction]:
    """Return each unit's probability to be in a sample of ``n`` without replacement.

    The probabilities are proportional to size, at most 1 each, and add up to ``n``.

    Sizes are positive, and ``n`` is at most their number. Units whose share would exceed 1 are in every sample, and the others
    share the rest (Särndal, Swensson and Wretman 1992, "Model Assisted Survey Sampling", section 3.6).
    """
    certain: set[int] = set()
    while True:
        left, total = n - len(certain), sum(sizes) - sum(sizes[i] for i in certain)
        capped = {i for i, size in enumerate(sizes) if i not in certain and left * size >= total}
        if not capped:
            return [Fraction(1) if i in certain else Fraction(left * size, total) for i, size in enumerate(sizes)]
        certain |= capped
