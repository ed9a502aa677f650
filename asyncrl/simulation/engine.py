"""A model of one vLLM engine: requests go in, and end after as many of its steps as they sample tokens.

Steps between which nothing changes are taken together, so that a request costs a few events, however many tokens it samples.
What always holds: the engine computes whole steps one after the other, each as long as :class:`.rates.EngineRates` says; a
request that comes during a step waits for its end; prompts are computed beside tokens that others sample; in a full cache the
request that came last is computed again later, as vLLM preempts; what another version computed is not found in the cache.
"""

import heapq
import math
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count

from asyncrl.core.ids import PolicyVersion
from asyncrl.simulation.events import Events
from asyncrl.simulation.processor import Processor, Share
from asyncrl.simulation.rates import EngineRates

_SLACK = 1e-9


class ModelRequest:
    """One turn of an episode in an engine.

    Attributes:
        key: the episode; what earlier turns of it computed may be in the cache.
        context: tokens before what is sampled.
        common: how many of these other requests of ``family`` begin with, too.
        sampled: tokens to sample.
        versions: how many of its tokens each version sampled; complete when it has ended.
    """

    __slots__ = ("common", "context", "done", "ended", "family", "first_step", "key", "order", "running", "sampled", "versions")

    def __init__(self, key: object, context: int, sampled: int, family: object, common: int, ended: Callable[[], None]) -> None:
        self.key, self.context, self.sampled, self.family, self.common, self.ended = key, context, sampled, family, common, ended
        self.versions: list[tuple[PolicyVersion, int]] = []
        self.done = 0
        self.first_step = 0.0
        self.order = 0
        self.running = False


class ModelEngine:
    """See the module. The owner gives requests by :meth:`submit` and new versions by :meth:`load`.

    Attributes:
        version: the version that samples.
        prompt_tokens: tokens of prompts that it computed.
        sampled: tokens that it sampled.
        preempted: requests that lost their place in the cache.
        most_running: the most requests that sampled at once.

    Args:
        most: requests that it computes at once.
        preamble: tokens that all prompts begin with.
    """

    def __init__(self, events: Events, rates: EngineRates, processor: Processor, most: int, preamble: int = 0) -> None:
        self._events, self._processor, self._most, self._preamble = events, processor, most, preamble
        self._step, self._request = rates.step.value, rates.request.value
        self._prompt, self._context_s = rates.prompt_token.value, rates.context_token.value
        self._capacity = rates.cache_tokens.value or math.inf
        self._block, self._step_tokens = int(rates.block_tokens.value), rates.step_tokens.value
        self._share = Share(max(rates.cores.value, 1e-9), 1.0, self._speed_changed)
        self._uses_cores = rates.cores.value > 0
        self.version = PolicyVersion(0)
        self.prompt_tokens = self.sampled = self.preempted = self.most_running = 0
        self._waiting: deque[ModelRequest] = deque()
        self._sampling: list[tuple[float, int, ModelRequest]] = []
        self._running = 0
        self._order = count()
        self._at = 0.0
        """Steps done, a whole number at the end of a step."""
        self._behind = 0.0
        """Tokens that the sampling requests have behind them."""
        self._filling: list[ModelRequest] | None = None
        """The requests whose prompts the present step computes."""
        self._fill_left = 0.0
        self._fill_steps = 1
        self._settled_at = 0.0
        self._epoch = 0
        self._speed, self._paused, self._active = 1.0, False, False
        self._known: OrderedDict[object, int] = OrderedDict()
        """Tokens of episodes that do not sample now and that the cache still holds, oldest first."""
        self._known_tokens = 0
        self._families: OrderedDict[object, int] = OrderedDict()

    @property
    def steps(self) -> int:
        """Steps that it computed."""
        return int(self._at)

    @property
    def requests(self) -> int:
        """Requests that sample or wait."""
        return self._running + len(self._waiting) + len(self._filling or ())

    @property
    def waiting(self) -> int:
        """Requests that wait for their prompt to be computed."""
        return len(self._waiting)

    @property
    def cache_share(self) -> float:
        """Share of the cache that sampling requests take."""
        return self._behind / self._capacity

    def submit(self, request: ModelRequest) -> None:
        """Sample a turn."""
        request.order = next(self._order)
        self._waiting.append(request)
        self._changed()

    def pause(self) -> None:
        """Compute nothing until :meth:`load`."""
        self._settle()
        self._paused = True
        self._plan()

    def load(self, version: PolicyVersion) -> None:
        """Go on with ``version``. What others computed is of no use to requests that come later."""
        self._settle()
        for _, _, request in self._sampling:
            if request.running:
                self._note(request)
        self.version, self._paused = version, False
        self._known.clear()
        self._families.clear()
        self._known_tokens = 0
        self._changed()

    def _note(self, request: ModelRequest) -> None:
        """Note what the version until now has sampled of a request."""
        if (more := min(round(self._at - request.first_step), request.sampled) - request.done) > 0:
            request.versions.append((self.version, more))
            request.done += more

    def _speed_changed(self, speed: float) -> None:
        self._settle()
        self._speed = speed
        self._plan()

    # Time

    def _seconds(self, steps: float) -> float:
        """The time of the next ``steps`` steps if no request comes or ends."""
        first = self._step + self._running * self._request + self._behind * self._context_s
        return steps * first + self._running * self._context_s * steps * steps / 2

    def _steps(self, seconds: float) -> float:
        first = self._step + self._running * self._request + self._behind * self._context_s
        growth = self._running * self._context_s
        if growth <= 0:
            return seconds / first
        return (math.sqrt(first * first + 2 * growth * seconds) - first) / growth

    def _settle(self) -> None:
        """Let what happened since the last call have happened."""
        now = self._events.now
        passed, self._settled_at = (now - self._settled_at) * self._speed, now
        if passed <= 0 or self._paused:
            return
        if self._filling is not None:
            self._fill_left -= passed
        elif self._running:
            self._advance(self._steps(passed))

    def _advance(self, steps: float) -> None:
        nearest = round(self._at + steps)
        self._at = float(nearest) if abs(self._at + steps - nearest) < 1e-6 else self._at + steps
        self._behind += steps * self._running

    def _changed(self) -> None:
        self._settle()
        self._plan()

    def _plan(self) -> None:
        """Find out when something happens next."""
        self._epoch += 1
        active = (self._filling is not None or self._running > 0 or bool(self._waiting)) and not self._paused
        if active != self._active and self._uses_cores:
            self._active = active
            (self._processor.use if active else self._processor.leave)(self._share)
            self._epoch += 1
        if not active:
            return
        if self._filling is None and self._waiting and self._at == int(self._at):
            self._fill()
        if self._filling is not None:
            seconds = self._fill_left
        elif self._running:
            seconds = self._seconds(self._next_stop() - self._at)
        else:
            return
        self._events.after(max(0.0, seconds) / self._speed, partial(self._wake, self._epoch))

    def _next_stop(self) -> float:
        """The number of steps done when a request ends, the cache is full, or a prompt that waits can be computed."""
        stop = self._sampling[0][0]
        if self._waiting and self._room(self._waiting[0]):
            stop = min(stop, math.floor(self._at) + 1.0)
        if self._behind + self._running > self._capacity and self._running > 1:
            return math.floor(self._at) + 1.0
        if self._capacity < math.inf:
            stop = min(stop, math.floor(self._at) + max(1.0, (self._capacity - self._behind) // self._running))
        return stop

    def _wake(self, epoch: int) -> None:
        if epoch != self._epoch:
            return
        if self._filling is not None:
            self._settled_at = self._events.now
            self._filled()
        else:
            self._settle()
            self._at = float(round(self._at))
        self._preempt()
        ended = self._end()
        self._plan()
        for request in ended:
            request.ended()

    def _end(self) -> list[ModelRequest]:
        ended = []
        while self._sampling and self._sampling[0][0] <= self._at + _SLACK:
            _, order, request = heapq.heappop(self._sampling)
            if not request.running or request.order != order:
                continue
            self._note(request)
            self._running -= 1
            request.running = False
            length = request.context + request.sampled
            self._behind = max(0.0, self._behind - length)
            self._keep(request, length)
            self.sampled += request.sampled
            ended.append(request)
        while self._sampling and not self._sampling[0][2].running:
            heapq.heappop(self._sampling)
        return ended

    # Cache

    def _keep(self, request: ModelRequest, tokens: int) -> None:
        self._known[request.key] = tokens
        self._known_tokens += tokens
        self._make_room(0)

    def _make_room(self, tokens: float) -> None:
        while self._known and self._behind + self._known_tokens + tokens > self._capacity:
            self._known_tokens -= self._known.popitem(last=False)[1]

    def forget(self, key: object) -> None:
        """Note that an episode has ended: what it computed is the next to leave the cache."""
        if key in self._known:
            self._known.move_to_end(key, last=False)

    def _room(self, request: ModelRequest) -> bool:
        return self._running < self._most and (self._behind + request.context + 1 <= self._capacity or not self._running)

    def _preempt(self) -> None:
        while self._behind + self._running > self._capacity and self._running > 1:
            last = max((request for _, _, request in self._sampling if request.running), key=lambda each: each.order)
            self._note(last)
            last.running = False
            self._running -= 1
            self._behind -= last.context + last.done
            last.order = next(self._order)
            self._waiting.appendleft(last)
            self.preempted += 1

    def _computed_before(self, request: ModelRequest) -> int:
        own = self._known.pop(request.key, 0)
        self._known_tokens -= own
        of_others = self._families.get(request.family, self._preamble if self._families else 0)
        found = max(min(own, request.context), min(of_others, request.common or self._preamble))
        if own < request.common:
            self._families[request.family] = max(of_others, request.common)
            while len(self._families) > 4096:
                self._families.popitem(last=False)
        return min(found, request.context + request.done - 1) // self._block * self._block

    def _fill(self) -> None:
        """Begin a step that computes the prompts of those that wait, as far as there is room."""
        filling: list[ModelRequest] = []
        prompts, behind = 0.0, self._behind
        while self._waiting and prompts < self._step_tokens:
            request = self._waiting[0]
            needed = request.context + request.done
            if self._running + len(filling) >= self._most:
                break
            if behind + needed + 1 > self._capacity and (self._running or filling):
                break
            self._waiting.popleft()
            prompts += needed - self._computed_before(request)
            behind += needed
            filling.append(request)
        if not filling:
            return
        self._fill_steps = max(1, math.ceil(prompts / self._step_tokens))
        self.prompt_tokens += int(prompts)
        self._filling = filling
        self._fill_left = self._seconds(self._fill_steps) + prompts * self._prompt

    def _filled(self) -> None:
        """End the step that computed prompts: each of its requests has its first token."""
        filling, self._filling = self._filling or [], None
        self._advance(self._fill_steps)
        for request in filling:
            request.first_step = self._at - 1 - request.done
            request.running = True
            self._running += 1
            self._behind += request.context + request.done + 1
            heapq.heappush(self._sampling, (self._at - 1 + request.sampled - request.done, request.order, request))
        self.most_running = max(self.most_running, self._running)
        self._make_room(0)


def version_counts(requests: Sequence[ModelRequest]) -> tuple[tuple[PolicyVersion, int], ...]:
    """Return how many tokens of several requests each version sampled, oldest first."""
    counts: dict[PolicyVersion, int] = {}
    for request in requests:
        for version, tokens in request.versions:
            counts[version] = counts.get(version, 0) + tokens
    return tuple(sorted(counts.items()))
