"""Splits the time of a worker and its engine by what they did, so that the parts add up to the whole.

While requests run, the time belongs to them: to sampling, or to evaluating, in proportion to their number. While none runs, it
belongs to what the episodes and the free places wait for, in proportion to their number: tools, scores, an evaluation's
environments, tickets. What always holds: at any moment the parts add up to the time since creation.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import IntEnum

import msgspec

from asyncrl.core.measures.time_split import PARTS, GeneratorTime
from asyncrl.core.trajectory import Sampling
from asyncrl.generators.completion import Completion, Sampler, Samplers


class Doing(IntEnum):
    """What several episodes, requests or calls may be doing at a time."""

    EPISODE = 0
    """A training episode is being played."""
    REQUEST = 1
    """A request of a training episode runs."""
    SCORE = 2
    """A finished episode waits for its score."""
    EVALUATION = 3
    """An evaluation is being played."""
    EVALUATION_REQUEST = 4
    """A request of an evaluation runs."""
    LOADING = 5
    """A publication is being loaded."""


_REQUEST, _EVALUATION_REQUEST = int(Doing.REQUEST), int(Doing.EVALUATION_REQUEST)
"""As integers: looking up a member of an enumeration takes as long as the rest of what is done for each request."""


class EngineTime:
    """The time of one worker, split by the parts of :class:`asyncrl.core.measures.time_split.GeneratorTime`.

    Args:
        room: number of episodes that could begin if there were tickets. Call :meth:`settle` before it changes.
        clock: returns the time in seconds; must never go back.
    """

    def __init__(self, room: Callable[[], int], clock: Callable[[], float]) -> None:
        self._room, self._clock = room, clock
        self._settled_at = clock()
        self._now = [0] * len(Doing)
        self._parts = dict.fromkeys(PARTS, 0.0)
        self._requests = 0.0
        self._contexts = [_Context(self, what) for what in Doing]

    def doing(self, what: Doing) -> "_Context":
        """Return a context manager: one more is doing ``what`` while the context lasts."""
        return self._contexts[what]

    def busy_with(self, what: Doing) -> int:
        """Return how many are doing ``what`` now."""
        return self._now[what]

    def change(self, what: int, by: int) -> None:
        """Note that ``by`` more are doing ``what``, a :class:`Doing`, from now on."""
        self.settle()
        self._now[what] += by

    @contextmanager
    def loading_publication(self, paused_seconds: Callable[[], float]) -> Iterator[None]:
        """Note that a publication is loaded while the context lasts. The engine says only afterwards for how long that paused it.

        The pause is taken from the parts that the time of the loading was added to until then, in proportion.

        Args:
            paused_seconds: seconds for which the engine has been paused so far.
        """
        if self._now[Doing.LOADING]:  # another one is being loaded, and counts the pause
            yield
            return
        with self.doing(Doing.LOADING):
            before, paused_before = dict(self._parts), paused_seconds()
            try:
                yield
            finally:
                self.settle()
                took = sum(self._parts.values()) - sum(before.values())
                paused = min(paused_seconds() - paused_before, took)
                if paused > 0:
                    for part, was in before.items():
                        self._parts[part] -= (self._parts[part] - was) * paused / took
                    self._parts["paused"] += paused

    def use(self) -> GeneratorTime:
        """Return the parts so far, and the seconds that requests of training episodes took, summed over all of them."""
        self.settle()
        return msgspec.structs.replace(GeneratorTime(requests=self._requests), **self._parts)

    def settle(self) -> None:
        """Count the time since the last call, in which nothing changed."""
        now = self._clock()
        elapsed, self._settled_at = now - self._settled_at, now
        if elapsed <= 0:
            return
        doing, parts = self._now, self._parts
        requests, evaluation_requests = doing[_REQUEST], doing[_EVALUATION_REQUEST]
        self._requests += elapsed * requests
        if requests and not evaluation_requests:  # this is so nearly always
            parts["sampling"] += elapsed
            return
        if running := requests + evaluation_requests:
            parts["sampling"] += elapsed * requests / running
            parts["evaluating"] += elapsed * evaluation_requests / running
            return
        waiting = {
            "tools": doing[Doing.EPISODE],
            "scoring": doing[Doing.SCORE],
            "evaluation_tools": doing[Doing.EVALUATION],
            "loading" if doing[Doing.LOADING] else "tickets": max(0, self._room()),
        }
        whole = sum(waiting.values())
        if not whole:
            parts["nothing"] += elapsed
            return
        for part, number in waiting.items():
            parts[part] += elapsed * number / whole


class _Context:
    """What :meth:`EngineTime.doing` returns. It has no state of its own, so contexts may lie within each other."""

    __slots__ = ("_time", "_what")

    def __init__(self, time: EngineTime, what: int) -> None:
        self._time, self._what = time, what

    def __enter__(self) -> None:
        self._time.change(self._what, 1)

    def __exit__(self, *_: object) -> None:
        self._time.change(self._what, -1)


class TimedSampler:
    """A sampler whose requests take their time as ``what``."""

    def __init__(self, sampler: Sampler, time: EngineTime, what: Doing) -> None:
        self._sampler, self._time, self._what = sampler, time, what

    async def generate(
        self,
        token_ids: Sequence[int],
        *,
        max_tokens: int,
        sampling: Sampling,
        stop_token_ids: tuple[int, ...],
        known_experts: int = 0,
    ) -> Completion:
        """Sample one turn, and note for how long its request ran."""
        with self._time.doing(self._what):
            return await self._sampler.generate(
                token_ids,
                max_tokens=max_tokens,
                sampling=sampling,
                stop_token_ids=stop_token_ids,
                known_experts=known_experts,
            )


class TimedSamplers:
    """Gives each episode a sampler whose requests take their time as ``what``."""

    def __init__(self, samplers: Samplers, time: EngineTime, what: Doing) -> None:
        self._samplers, self._time, self._what = samplers, time, what

    @contextmanager
    def episode(self) -> Iterator[Sampler]:
        """Return the context of one episode."""
        with self._samplers.episode() as sampler:
            yield TimedSampler(sampler, self._time, self._what)
