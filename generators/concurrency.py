"""Decides how many episodes a worker plays at once, from what its engine can bear.

An episode that waits for a tool takes nothing of its engine; one that samples takes key-value cache. When the cache is full, vLLM
preempts requests and computes them again, or lets them wait while their episodes age. So the limit falls by a tenth when the
cache was too small for what was playing, and grows by one episode a second while all of it is used and the cache has room
(additive increase, multiplicative decrease: Chiu and Jain, 1989). What always holds: the limit lies between 1 and
``generators.max_running``.
"""

from collections.abc import Callable, Sequence
from statistics import fmean

import msgspec

DECREASE = 0.9
"""The part of the episodes that remains allowed after the cache was too small for them."""
FULL = 0.8
"""The share of the cache in use above which requests wait for room in it, and up to which an episode may be added."""


class EngineLoad(msgspec.Struct, frozen=True):
    """What an engine has to do at one moment.

    Attributes:
        running: requests that are being computed.
        waiting: requests that wait for room in the batch or in the cache, preempted ones among them.
        cache_share: share of the key-value cache that running requests take, from 0 to 1, in the rank where it is largest.
        cpu_seconds: processor time that the engine's processes have taken since they started, all their threads together.
        prefill_seconds, decode_seconds: seconds of its steps so far, as far as they computed prompts and sampled tokens; see
            :class:`asyncrl.generators.vllm.engine_steps.EngineSteps`.
        moments: sums over its steps so far, in the order of :data:`asyncrl.core.measures.step_moments.PAIRS`.
    """

    running: int
    waiting: int
    cache_share: float
    cpu_seconds: float = 0.0
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0
    moments: Sequence[float] = ()

    @classmethod
    def total(cls, loads: Sequence["EngineLoad"]) -> "EngineLoad":
        """Return the load of an engine whose data-parallel ranks, which make their steps side by side, have these."""
        return cls(
            running=sum(load.running for load in loads),
            waiting=sum(load.waiting for load in loads),
            cache_share=max(load.cache_share for load in loads),
            cpu_seconds=sum(load.cpu_seconds for load in loads),
            prefill_seconds=fmean(load.prefill_seconds for load in loads),
            decode_seconds=fmean(load.decode_seconds for load in loads),
            moments=tuple(sum(each) for each in zip(*(load.moments for load in loads), strict=True)),
        )


class Concurrency:
    """The limit on the episodes that one worker plays at once.

    Args:
        most: ``generators.max_running``, where the limit begins.
        changed: called with the new limit and the reason whenever the limit changes.
    """

    def __init__(self, most: int, changed: Callable[[int, str], None]) -> None:
        self._most, self._changed = most, changed
        self._falling = False
        self.limit = most

    def observe(self, load: EngineLoad, playing: int) -> None:
        """Adapt the limit to ``load``, seen while ``playing`` episodes were played. Meant for one call a second."""
        if playing <= self.limit:
            self._falling = False
        if load.waiting > 0 and load.running < self._most and load.cache_share > FULL:
            if not self._falling:  # one decrease is enough until the episodes above the limit are over
                self._falling = True
                reason = f"{load.cache_share:.0%} of the key-value cache was in use, and {load.waiting} waited for room in it"
                self._set(int(DECREASE * min(playing, self.limit)), reason)
        elif playing >= self.limit and load.waiting == 0 and load.cache_share <= FULL:
            self._set(self.limit + 1, "the key-value cache has room again")

    def bound(self, most: int) -> None:
        """Change ``generators.max_running``; a limit that the cache has lowered grows by itself."""
        limit = most if self.limit == self._most else self.limit
        self._most = most
        self._set(limit, f"generators.max_running is {most} from here on")

    def _set(self, limit: int, reason: str) -> None:
        limit = max(1, min(self._most, limit))
        if limit != self.limit:
            self.limit = limit
            self._changed(limit, reason)
