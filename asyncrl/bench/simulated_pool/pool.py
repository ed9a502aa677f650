"""A pool of engines and a learner around the real buffer, in simulated time.

Tickets, groups, staleness and ledger are the production code; only time, tokens and failures are simulated. A run is a pure
function of its arguments. Durations of episodes have a heavy tail, and an episode has as many tokens as its duration allows. Each
engine loads a new version at its own moment of the publication; engines die and come back; environments break. The time at
which an episode ran determines which version sampled how many of its tokens.
"""

import heapq
import math
import random
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import count

import msgspec

from asyncrl.bench.simulated_pool.admission_only import AdmissionOnly
from asyncrl.buffers.replay_buffer import ReplayBuffer
from asyncrl.core.batch import Batch
from asyncrl.core.episode_records import EpisodeRecord, PayloadRef, TrajectoryRecord
from asyncrl.core.errors import FailureKind
from asyncrl.core.ids import GroupId, PolicyVersion, WorkerId
from asyncrl.core.recipe.schema import BatchConfig
from asyncrl.core.task import Task
from asyncrl.core.ticket import Ticket
from asyncrl.core.trajectory import StopReason
from asyncrl.simulation.episodes import uniform

_GOLDEN = (math.sqrt(5) - 1) / 2
_SHARD = 0


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """The simulated world. Times are in seconds.

    Attributes:
        slots: episodes that an engine runs at once; it leases a group when there is a slot for each of its episodes.
        shortest: duration of the shortest possible episode.
        tail: exponent of the Pareto distribution of durations; below 2 its variance is infinite, with ``math.inf`` all are equal.
        longest: no episode takes longer, as under ``environment.episode_timeout_s``.
        tokens_per_second: sampling speed of one episode, so that episodes of long duration have many tokens.
        step: duration of a training step.
        publish: duration of a weight publication; each engine loads the weights at its own moment of it.
        engine_life: mean time after which an engine dies.
        silence: time after its death when an engine's episodes are given up and it comes back.
        broken: share of episodes whose environment breaks.
        service: time that the buffer's process works for one episode; those handed in at the same time wait for each other.
    """

    engines: int
    slots: int
    shortest: float
    tail: float = 1.2
    longest: float = math.inf
    tokens_per_second: float = 20.0
    step: float
    publish: float
    engine_life: float = math.inf
    silence: float = 30.0
    broken: float = 0.0
    service: float = 0.0
    seed: int = 0

    def duration(self, group_id: GroupId, sample_index: int) -> float:
        """Return the duration of an episode. It stays the same if the episode is issued again: the task is what makes it long."""
        drawn = uniform(self.seed, group_id, sample_index)
        return min(self.shortest * math.pow(1 - drawn, -1 / self.tail), self.longest)

    def length(self, group_id: GroupId, sample_index: int) -> int:
        """Return the length of an episode in tokens, all of them sampled."""
        return max(1, round(self.duration(group_id, sample_index) * self.tokens_per_second))

    def breaks(self, group_id: GroupId, sample_index: int, attempt: int) -> bool:
        """Return whether the environment of this attempt breaks."""
        return uniform(self.seed, group_id, sample_index, attempt, 1) < self.broken


class Observer:
    """Is told what happens in the pool. Subclasses override the methods they need."""

    def issued(self, ticket: Ticket) -> None:
        """Look at a ticket that was leased; its group may have been issued before."""

    def took(self, batch: Batch, records: Sequence[EpisodeRecord]) -> None:
        """Look at a batch that the learner takes; its row ``i`` was made from ``records[i]``."""


Reward = Callable[[Task, int, PolicyVersion], float]
"""Returns the reward of an episode, given its task, its sample index, and the version that sampled its first token."""


class Varied:
    """Gives rewards 0 and 1 in turn within a group. A share of the tasks gets equal rewards, so their groups are filtered."""

    def __init__(self, without_variance: float, seed: int = 0) -> None:
        self._share, self._seed = without_variance, seed

    def __call__(self, task: Task, sample_index: int, version: PolicyVersion) -> float:
        """Return 0 and 1 in turn; of a task without variance, 0."""
        return float(sample_index % 2) if self.varies(task) else 0.0

    def varies(self, task: Task) -> bool:
        """Return whether rewards of this task vary within a group."""
        return uniform(self._seed, task.data["number"]) >= self._share


class Pool:
    """Engines, learner and buffer; :meth:`run` lets time pass.

    Attributes:
        now: seconds since the start.
        step: training steps done.
        learner_idle: seconds that the learner waited for a batch, or for the end of a publication before the next could begin.
        stored: payload that the buffer has not freed yet, by offset.
        buffer_busy: seconds that the buffer's process worked for episodes.

    Args:
        buffer: a new buffer, which has issued nothing yet.
        steps: training steps of the run.
        renews: whether engines, after each publication, stop groups that nobody waits for any more. There are such groups only
            if the buffer drops what is stale.
    """

    def __init__(
        self,
        buffer: ReplayBuffer | AdmissionOnly,
        shape: Shape,
        reward: Reward,
        observers: Sequence[Observer] = (),
        *,
        batch: BatchConfig,
        steps: int,
        renews: bool = False,
    ) -> None:
        self._buffer, self._shape, self._reward, self._observers = buffer, shape, reward, observers
        self._batch, self._steps, self._renews = batch, steps, renews
        self._rng = random.Random(shape.seed)
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._serial = count()
        self._offsets = count()
        self._engines = [_Engine(number, shape.slots, number * _GOLDEN % 1 * shape.publish) for number in range(shape.engines)]
        self._idle = dict.fromkeys(self._engines)
        self._publications: list[float] = []
        self._publishing = False
        self._waiting_since: float | None = 0.0
        self._trained_ahead = False
        self.now = 0.0
        self.step = 0
        self.learner_idle = 0.0
        self.buffer_busy = 0.0
        self._served_until = 0.0
        self.stored: dict[int, EpisodeRecord] = {}
        self._next_death()

    def run(self, until: float = math.inf, step: int | None = None) -> None:
        """Let time pass until ``until`` or the end of a training step, by default the last.

        Raises:
            RuntimeError: no event is left, but the step is not done.
        """
        step = self._steps if step is None else step
        self._settle()
        while self.step < step:
            if not self._events:
                raise RuntimeError(f"the pool stands still at step {self.step} of {self._steps}, {self.now:g} s after its start")
            if self._events[0][0] > until:
                self.now = until
                return
            self.now, _, happen = heapq.heappop(self._events)
            happen()
            self._settle()

    def _at(self, seconds_from_now: float, happen: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now + seconds_from_now, next(self._serial), happen))

    def _settle(self) -> None:
        """Let everyone continue who can: the learner first, then engines with free slots."""
        if self._waiting_since is not None and not self._trained_ahead:
            self._try_to_take()
        for ref in self._buffer.drain_freed():
            del self.stored[ref.offset]
        while self._idle and self._buffer.room() > 0:
            engine = next(iter(self._idle))
            tickets = self._buffer.lease(engine.worker, engine.free // self._batch.group_size, self.now)
            for ticket in tickets:
                self._begin(engine, ticket)
            self._note_slots(engine)

    # Engines

    def _begin(self, engine: "_Engine", ticket: Ticket) -> None:
        for observer in self._observers:
            observer.issued(ticket)
        for index in ticket.samples:
            episode = _Episode(engine, ticket, index, self.now)
            engine.running[ticket.group_id, index] = episode
            duration = self._shape.duration(ticket.group_id, index)
            if self._shape.breaks(ticket.group_id, index, ticket.attempt):
                self._at(duration / 2, episode_ends(self._break, episode))
            else:
                self._at(duration, episode_ends(self._hand_in, episode))

    def _hand_in(self, episode: "_Episode") -> None:
        """Have the buffer take an episode in its turn; until then it keeps its slot."""
        episode.ended = self.now
        self.buffer_busy += self._shape.service
        self._served_until = max(self._served_until, self.now) + self._shape.service
        if self._served_until == self.now:
            self._finish(episode)
        else:
            self._at(self._served_until - self.now, episode_ends(self._finish, episode))

    def _finish(self, episode: "_Episode") -> None:
        ticket, index = episode.ticket, episode.index
        length = self._shape.length(ticket.group_id, index)
        sampled = tuple(self._sampled(episode, length))
        record = EpisodeRecord(
            group_id=ticket.group_id,
            sample_index=index,
            reward=self._reward(ticket.task, index, sampled[0][0]),
            stop_reason=StopReason.ENVIRONMENT_DONE,
            payload=PayloadRef(_SHARD, "", next(self._offsets), 9 * length, 0),
            trajectories=(TrajectoryRecord(length, sampled),),
        )
        self.stored[record.payload.offset] = record
        self._end(episode)
        self._buffer.commit([record], self.now)

    def _sampled(self, episode: "_Episode", length: int) -> Iterator[tuple[PolicyVersion, int]]:
        """Yield how many tokens each version sampled: those between its loading and that of the next version."""
        loaded_after, duration = episode.engine.loaded_after, episode.ended - episode.began
        first = bisect_right(self._publications, episode.began - loaded_after)
        last = bisect_right(self._publications, episode.ended - loaded_after)
        done = 0
        for version in range(first, last + 1):
            if version == last:
                so_far = length
            else:
                so_far = int(length * (self._publications[version] + loaded_after - episode.began) / duration)
            if so_far > done:
                yield PolicyVersion(version), so_far - done
            done = so_far

    def _break(self, episode: "_Episode") -> None:
        self._end(episode)
        self._buffer.fail(episode.ticket.group_id, episode.index, FailureKind.DATA, "the simulated environment broke")

    def _end(self, episode: "_Episode") -> None:
        del episode.engine.running[episode.ticket.group_id, episode.index]
        self._note_slots(episode.engine)

    def _note_slots(self, engine: "_Engine") -> None:
        if engine.alive and engine.free >= self._batch.group_size:
            self._idle[engine] = None
        else:
            self._idle.pop(engine, None)

    def _next_death(self) -> None:
        if math.isfinite(self._shape.engine_life):
            self._at(self._rng.expovariate(self._shape.engines / self._shape.engine_life), self._die)

    def _die(self) -> None:
        engine = self._rng.choice(self._engines)
        if engine.alive:
            engine.alive = False
            engine.running.clear()
            self._note_slots(engine)
            self._at(self._shape.silence, lambda: self._come_back(engine))
        self._next_death()

    def _come_back(self, engine: "_Engine") -> None:
        self._buffer.lost(engine.worker)
        engine.lives += 1
        engine.alive = True
        self._note_slots(engine)

    # Learner

    def _try_to_take(self) -> None:
        version, groups = PolicyVersion(self.step), self._batch.groups_per_step
        if self._buffer.batches.has_stale(version):
            self._buffer.batches.expire(version)
        if not self._buffer.batches.takeable(version, groups):
            return
        assert self._waiting_since is not None
        self.learner_idle += self.now - self._waiting_since
        self._waiting_since = None
        batch = self._buffer.batches.take(version, groups)
        records = [self.stored[episode.payload.offset] for episode in batch.episodes]
        for observer in self._observers:
            observer.took(batch, records)
        self._at(self._shape.step, self._step_ends)

    def _step_ends(self) -> None:
        self._buffer.batches.trained(PolicyVersion(self.step))
        self.step += 1
        self._buffer.batches.checkpointed(PolicyVersion(self.step))
        self._waiting_since = self.now
        self._trained_ahead = True
        self._try_to_publish()

    def _try_to_publish(self) -> None:
        """Begin a publication unless one is under way: the learner is at most one version ahead of the published one."""
        if self._trained_ahead and not self._publishing:
            self._trained_ahead = False
            self._publishing = True
            self._publications.append(self.now)
            version = PolicyVersion(self.step)
            self._at(self._shape.publish, lambda: self._published(version))

    def _published(self, version: PolicyVersion) -> None:
        self._publishing = False
        self._buffer.advance(version)
        if self._renews:
            for engine in self._engines:
                self._renew(engine)
        self._try_to_publish()

    def _renew(self, engine: "_Engine") -> None:
        unwanted = set(self._buffer.unwanted(engine.worker, sorted({group_id for group_id, _ in engine.running})))
        for key in [key for key in engine.running if key[0] in unwanted]:
            del engine.running[key]
        self._note_slots(engine)


class _Engine:
    """One engine; ``running`` holds its episodes by group and sample index."""

    def __init__(self, number: int, slots: int, loaded_after: float) -> None:
        self._number, self._slots = number, slots
        self.loaded_after = loaded_after
        """Seconds from the start of a publication until this engine has the new weights."""
        self.running: dict[tuple[GroupId, int], _Episode] = {}
        self.alive = True
        self.lives = 0

    @property
    def worker(self) -> WorkerId:
        return WorkerId(f"engine-{self._number}/{self.lives}")

    @property
    def free(self) -> int:
        return self._slots - len(self.running)


class _Episode:
    """One episode. It runs as long as its engine holds this object; ``ended`` is known once it is handed in."""

    __slots__ = ("began", "ended", "engine", "index", "ticket")

    def __init__(self, engine: _Engine, ticket: Ticket, index: int, began: float) -> None:
        self.engine, self.ticket, self.index, self.began = engine, ticket, index, began
        self.ended = math.inf

    @property
    def runs(self) -> bool:
        return self.engine.running.get((self.ticket.group_id, self.index)) is self


def episode_ends(how: Callable[[_Episode], None], episode: _Episode) -> Callable[[], None]:
    """Make an event that does nothing if the episode was stopped before."""
    return lambda: how(episode) if episode.runs else None
