"""A whole run in simulated time: the learner takes, trains and publishes, while workers play what the buffer lets them.

Buffer, ledger, staleness policy, samplers, pacing, delivery protocol, concurrency and packing are the production code. Time comes
from :class:`.rates.Rates`, episodes are drawn from played ones, and little else is random. What always holds: the order of what
the learner does is that of :mod:`asyncrl.run.train_pump`; a run is a pure function of its arguments.
"""

import math
from collections import deque
from collections.abc import Callable
from functools import partial
from itertools import count

import msgspec

from asyncrl.buffers.replay_buffer import ReplayBuffer
from asyncrl.buffers.waiters import fair_share
from asyncrl.core.batch import Batch
from asyncrl.core.episode_records import EpisodeRecord, PayloadRef, TrajectoryRecord, checked_lengths
from asyncrl.core.errors import FailureKind
from asyncrl.core.ids import PolicyVersion
from asyncrl.core.measures.pacing import Pacing
from asyncrl.core.measures.time_split import GeneratorTime, LearnerTime, TimeSplit
from asyncrl.core.publication import Publication
from asyncrl.core.recipe.buffer import AccuracyWindowFilterConfig, ZeroVarianceFilterConfig
from asyncrl.core.recipe.schema import Recipe
from asyncrl.core.recipe.section import AUTO
from asyncrl.core.ticket import Ticket
from asyncrl.core.trajectory import StopReason
from asyncrl.simulation.engine import ModelEngine
from asyncrl.simulation.episodes import NOTHING_HELD, Held, ModelEpisode, ModelEpisodes, simulated_tasks, uniform
from asyncrl.simulation.events import Events
from asyncrl.simulation.job import Job
from asyncrl.simulation.learner import seconds, work
from asyncrl.simulation.outcome import MOST_DEATHS, EnginesDieTooSoon, ModelStandsStill, Outcome
from asyncrl.simulation.part import LongestEpisodes, part_of
from asyncrl.simulation.processor import Processor
from asyncrl.simulation.rates import Rates
from asyncrl.simulation.worker import ModelWorker
from asyncrl.weights.delivery_rules import Deliveries

WARM_UP = 3
"""Training steps that never count; more do not where the pipeline is deeper."""
_NEVER = 1 << 40
_MOST_FILTERED = 0.98
"""The largest share of groups that filters leave out: with all of them, no batch would ever be full."""


class ModelledRun:
    """One run. :meth:`run` lets time pass.

    Attributes:
        scale: engines and batch are so many times as large in the run that is modelled.
        group_size: ``batch.group_size``.

    Args:
        recipe: with every key that is ``auto`` chosen.
        steps: training steps that count.
    """

    def __init__(
        self, recipe: Recipe, rates: Rates, episodes: ModelEpisodes, *, seed: int, steps: int, held: Held = NOTHING_HELD
    ) -> None:
        self._recipe, self._rates, self._episodes, self._seed, self._held = recipe, rates, episodes, seed, held
        self._count = steps
        part = part_of(recipe)
        self.group_size, self.scale, self._groups = recipe.batch.group_size, part.scale, part.groups
        batch = msgspec.structs.replace(recipe.batch, groups_per_step=part.groups)
        capacity = max(1, round(recipe.buffer.capacity_mb / self.scale))
        limits = msgspec.structs.replace(recipe.buffer, capacity_mb=capacity, max_failures=_NEVER)
        self._limits = limits
        self._longest: LongestEpisodes | None = None
        if part.left_out and not limits.largest_depth:
            self._longest = LongestEpisodes(episodes, rates.engine, self.group_size, part.left_out, seed)
        self._first = max(WARM_UP, limits.first_depth + 2)
        tasks = simulated_tasks(min(20_000, 2 * self._groups * (steps + self._first + limits.largest_depth)), seed)
        self._buffer = ReplayBuffer(batch, limits, tasks, steps=_NEVER, seed=seed)
        self._events = Events()
        machine = rates.machine
        self._processor = Processor(machine.cores.value, machine.others.value, self._events.clock)
        self._learner = Job(self._events, self._processor, rates.learner.cores.value, machine.weight.value)
        self._workers = [
            self._worker(f"{name}-{number}", pool.max_running)
            for name, pool in recipe.generators.training.items()
            for number in range(max(1, round(pool.count * part.engines)))
        ]
        self._evaluators = [
            self._worker(f"{name}-{number}", pool.max_running)
            for name, pool in recipe.generators.by_pool.items()
            if pool.role == "evaluation"
            for number in range(pool.count)
        ]
        self._deliveries = Deliveries(recipe.deadlines.straggler, self._events.clock)
        for worker in self._all:
            self._deliveries.join(worker.worker_id, "", waited_for=True)
        self._pacing = Pacing(limits.first_depth, limits.largest_depth) if limits.pipeline_depth == AUTO else None
        self._asking: deque[tuple[ModelWorker, int, PolicyVersion, str]] = deque()
        self._offsets = count()
        self._stored: dict[int, EpisodeRecord] = {}
        self._step = self._deaths = 0
        self._delivering = self._evaluating = self._settling = False
        self._wants_batch: float | None = None
        self._trained_since = self._ready = 0.0
        self._spent: dict[str, float] = {}
        self._after_delivery: Callable[[], None] | None = None
        self._batch: Batch | None = None
        self._before: tuple[float, GeneratorTime, float, int] | None = None
        self._ledger = (0, 0)
        self.outcome = Outcome()

    @property
    def _all(self) -> list[ModelWorker]:
        return [*self._workers, *self._evaluators]

    def _worker(self, name: str, most: int) -> ModelWorker:
        engine = ModelEngine(self._events, self._rates.engine, self._processor, most, self._episodes.preamble)
        return ModelWorker(self._events, engine, self, name, most, self._rates.engine.turn.value)

    def run(self) -> Outcome:
        """Let time pass until enough training steps are done.

        Raises:
            ModelStandsStill: nothing is left to happen before that.
            EnginesDieTooSoon: engines die before their episodes are over.
        """
        self._before = self._moment()
        for worker in self._workers:
            worker.look_for_room()
        self._mortal()
        self._begin_step()
        while self.outcome.steps < self._count:
            if not self._events.next():
                raise ModelStandsStill(self._step, self._events.now)
        outcome = self.outcome
        for worker in self._all:
            engine = worker.engine
            outcome.preempted += engine.preempted
            outcome.most_requests = max(outcome.most_requests, engine.most_running)
        outcome.depth, outcome.scale = self._buffer.depth, self.scale
        outcome.start_s = max(self._rates.engine.start.value, self._rates.learner.start.value)
        return outcome

    # What workers ask

    def draw(self, ticket: Ticket, index: int) -> tuple[ModelEpisode, bool]:
        """Return the episode of a sample, and whether its environment breaks."""
        episode = self._episodes.draw(self._seed, ticket.group_id, index)
        broken = self._rates.failures.broken.value
        breaks = broken > 0 and uniform(self._seed, ticket.group_id, index, ticket.attempt, 1) < broken
        if self._step >= self._first and not ticket.attempt:
            self.outcome.issued_tokens += episode.length
            self.outcome.issued_episodes += 1
        return episode, breaks

    def record(
        self, ticket: Ticket, index: int, episode: ModelEpisode, sampled: tuple[tuple[PolicyVersion, int], ...]
    ) -> EpisodeRecord:
        """Return the record of a finished episode."""
        group, length, prompt = ticket.group_id, episode.length, episode.prompt
        same = self._filters and uniform(self._seed, group, 2) < min(_MOST_FILTERED, self._rates.failures.filtered.value)
        checksums = (int(group) & 0xFFFFFFFF,) * len(checked_lengths(prompt))
        trajectory = TrajectoryRecord(length, sampled, (), prompt, checksums)
        reference = PayloadRef(0, "", next(self._offsets), 9 * length, 0)
        reward = 0.0 if same else float(index % 2)
        return EpisodeRecord(group, index, reward, StopReason.ENVIRONMENT_DONE, reference, (trajectory,))

    @property
    def _filters(self) -> bool:
        kinds = (ZeroVarianceFilterConfig, AccuracyWindowFilterConfig)
        return any(isinstance(each, kinds) for each in self._limits.filters)

    def ask(self, worker: ModelWorker, limit: int) -> None:
        """Have the worker get up to ``limit`` tickets as soon as there are some."""
        self._asking.append((worker, limit, worker.engine.version, worker.worker_id))
        self._settle()

    def hand_in(self, record: EpisodeRecord) -> None:
        """Take in a finished episode."""
        self._stored[record.payload.offset] = record
        if self._longest is not None:
            self._longest.finished(record.group_id, record.sample_index, self._events.now)
        self._buffer.commit([record], self._events.now)
        self._settle()

    def fail(self, ticket: Ticket, index: int, kind: FailureKind) -> None:
        """Take back an episode that failed."""
        self._buffer.fail(ticket.group_id, index, kind, "the modelled environment broke")
        self._settle()

    def _settle(self) -> None:
        """Let everybody go on who can: the learner first, then who asks for tickets, in turn."""
        if self._settling:
            return
        self._settling = True
        self._try_to_take()
        for ref in self._buffer.drain_freed():
            self._stored.pop(ref.offset, None)
        later: list[tuple[ModelWorker, int, PolicyVersion, str]] = []
        while self._asking and self._buffer.room() > 0:
            worker, limit, version, name = self._asking.popleft()
            if version != worker.engine.version or name != worker.worker_id or not worker.alive:
                continue  # it has asked again since, as a newer version
            if version < self._buffer.version:
                continue
            if version > self._buffer.version:
                later.append((worker, limit, version, name))
                continue
            asking = 1 + sum(of_others == version for _, _, of_others, _ in self._asking)
            share = min(limit, fair_share(self._buffer.room(), asking))
            worker.answered(self._buffer.lease(worker.worker_id, share, self._events.now))
        self._asking.extendleft(reversed(later))
        self._settling = False

    # The learner

    def _begin_step(self) -> None:
        self._wants_batch = self._events.now
        self._settle()

    def _try_to_take(self) -> None:
        if self._wants_batch is None:
            return
        version, batches = PolicyVersion(self._step), self._buffer.batches
        if batches.has_stale(version):
            batches.expire(version)
        if not batches.takeable(version, self._groups):
            return
        later = 0.0 if self._longest is None else self._longest.later(self._step, self._events.now)
        self._trained_since = self._events.now + later
        self._spent = {"waiting": self._trained_since - self._wants_batch}
        self._wants_batch = None
        self._batch = batch = batches.take(version, self._groups)
        given = work(batch, self._recipe, self._episodes.preamble, self.scale)
        self.outcome.rank_tokens = max(self.outcome.rank_tokens, given.tokens)
        whole, fixed = seconds(self._rates.learner, given)
        self._spent["optimizer"] = fixed
        error = self._rates.learner.token.error or 0.0
        noise = math.exp(min(error, 0.3) * (sum(uniform(self._seed, self._step, each) for each in range(12)) - 6))
        if later:
            self._events.after(later, partial(self._learner.start, whole * noise, self._trained))
        else:
            self._learner.start(whole * noise, self._trained)

    def _trained(self) -> None:
        self._spent["training"] = self._events.now - self._trained_since
        self._buffer.batches.trained(PolicyVersion(self._step))
        self._spent["delivering"] = 0.0
        self._ready = self._events.now
        if self._delivering:
            self._after_delivery = self._write
        else:
            self._write()
        self._settle()

    def _write(self) -> None:
        self._spent["delivering"] = self._events.now - self._ready
        self._spent["writing"] = self._rates.publication.write.value
        self._events.after(self._spent["writing"], self._written)

    def _written(self) -> None:
        self._step, self._deaths = self._step + 1, 0
        version = PolicyVersion(self._step)
        self._delivering = True
        self._deliveries.announce(Publication(version=version, files=(), shards=(), fingerprints=(), fingerprint=int(version)))
        for worker in self._all:
            self._deliver_to(worker)
        self._buffer.batches.checkpointed(version)
        checkpoints = self._recipe.checkpoint.every if self._limits.journal.__struct_config__.tag != "none" else _NEVER
        blocked = self._rates.publication.checkpoint.value if self._step % checkpoints == 0 else 0.0
        self._spent["checkpointing"] = blocked
        self._events.after(self._rates.learner.between.value + blocked, self._recorded)

    def _recorded(self) -> None:
        self._record()
        if self._step % self._recipe.evaluation.every == 0 and not self._evaluating:
            self._evaluate()
        self._begin_step()

    # Publications

    def _deliver_to(self, worker: ModelWorker) -> None:
        if not worker.alive or worker.loading:
            return
        publication = self._deliveries.begin(worker.worker_id)
        if publication is None:
            return
        self._deliveries.fetched(worker.worker_id, publication)
        name = worker.worker_id
        rates = self._rates.publication
        worker.load(publication.version, rates.move.value, rates.pause.value, partial(self._loaded, worker, name, publication))

    def _loaded(self, worker: ModelWorker, name: str, publication: Publication) -> None:
        if name == worker.worker_id:
            self._deliveries.acknowledged(worker.worker_id, publication.fingerprint)
        self._look_at_delivery()
        self._deliver_to(worker)
        if self._deliveries.wait_s:
            self._events.after(self._deliveries.wait_s + 1e-6, self._look_at_delivery)

    def _look_at_delivery(self) -> None:
        newest = self._deliveries.newest
        if not self._delivering or newest is None or not self._deliveries.acknowledged_by_all:
            return
        self._delivering = False
        self._buffer.advance(newest)
        if self._after_delivery is not None:
            go_on, self._after_delivery = self._after_delivery, None
            go_on()
        self._settle()

    def _evaluate(self) -> None:
        held = self._held
        players = self._evaluators or self._workers
        if held.episodes is None or held.count == 0:
            return
        self._evaluating = True
        left = [len(players)]

        def done() -> None:
            left[0] -= 1
            self._evaluating = left[0] > 0

        each = max(1, round(held.count / self.scale / len(players)))
        for number, worker in enumerate(players):
            worker.evaluate([held.episodes.draw(self._seed, -1 - self._step, number * each + i) for i in range(each)], done)

    # Engines that die

    def _mortal(self) -> None:
        life = self._rates.failures.engine_life.value
        if life > 0:
            for number in range(len(self._workers)):
                self._events.after(-math.log(1 - uniform(self._seed, number, 3)) * life, partial(self._die, number, 0))

    def _die(self, number: int, time: int) -> None:
        worker = self._workers[number]
        gone = worker.worker_id
        self._deaths += 1
        if self._deaths > MOST_DEATHS * len(self._workers):
            raise EnginesDieTooSoon(self._step + 1, self._deaths, self._rates.failures.engine_life.value)
        worker.die()
        self._deliveries.leave(gone)
        self._look_at_delivery()
        silence = self._rates.failures.lease.value

        def given_up() -> None:
            self._buffer.lost(gone)
            self._settle()

        def back() -> None:
            engine = self._worker(gone, worker.limit).engine
            engine.version = self._deliveries.newest or PolicyVersion(0)
            worker.revive(engine)
            self._deliveries.join(worker.worker_id, "", waited_for=False)
            self._deliver_to(worker)
            life = self._rates.failures.engine_life.value
            seconds = -math.log(1 - uniform(self._seed, number, time + 4)) * life
            self._events.after(seconds, partial(self._die, number, time + 1))

        self._events.after(silence, given_up)
        self._events.after(silence + self._rates.engine.start.value, back)

    # What comes of it

    def _moment(self) -> tuple[float, GeneratorTime, float, int]:
        time = sum((worker.use() for worker in self._workers), GeneratorTime())
        return self._events.now, time, self._processor.core_seconds, sum(worker.engine.sampled for worker in self._workers)

    def _record(self) -> None:
        assert self._before is not None
        assert self._batch is not None
        before, now, batch = self._before, self._moment(), self._batch
        self._before = now
        passed, spent = now[0] - before[0], self._spent
        cores = self._rates.machine.cores.value
        time = TimeSplit(
            seconds=passed,
            learner=LearnerTime(**spent),
            generators=now[1] - before[1],
            slots=passed * len(self._workers),
            cores=(now[2] - before[2]) / cores if cores else 0.0,
            trajectories=len(batch.episodes),
            trained_tokens=sum(row.length for row in batch.rows),
            generated_tokens=now[3] - before[3],
        )
        if self._step > self._first:
            self.outcome.add(batch, time)
        elif self._step == self._first:
            ledger = self._buffer.statistics().ledger
            self._ledger = (ledger.issued, ledger.expired)
        if self._step == self._first + self._count:
            ledger = self._buffer.statistics().ledger
            self.outcome.issued, self.outcome.expired = ledger.issued - self._ledger[0], ledger.expired - self._ledger[1]
        self._pace(batch, time)

    def _pace(self, batch: Batch, time: TimeSplit) -> None:
        if self._pacing is not None and self._pacing.step(time.both_wait):
            self._buffer.pace(self._pacing.depth)
            self._settle()
