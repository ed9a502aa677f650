"""A modelled run that turns its own sizes: the production controller in simulated time, on a workload that may drift.

What always holds: an engine takes as long to come up as an engine does, the pipeline is turned through the buffer, a plan takes
its time and knows no rate exactly, and what the controller is told is what a run's recorder would tell it.
"""

import math
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

import msgspec

from asyncrl.core.batch import Batch
from asyncrl.core.ids import PolicyVersion
from asyncrl.core.measures.time_split import TimeSplit
from asyncrl.core.recipe.knobs import Setting, setting_of, with_setting
from asyncrl.core.recipe.schema import Recipe
from asyncrl.core.recipe.tune import DEPTH
from asyncrl.core.ticket import Ticket
from asyncrl.core.tuning.controller import Controller, Foreseen
from asyncrl.core.tuning.moves import Line
from asyncrl.core.tuning.window import Seen
from asyncrl.simulation.episodes import ModelEpisode, ModelEpisodes, uniform
from asyncrl.simulation.modelled_run import ModelledRun
from asyncrl.simulation.rates import EngineRates, LearnerRates, Rate, Rates
from asyncrl.simulation.worker import ModelWorker

ENGINES = "generators.count"
PLAN_S = 20.0
"""How long a plan takes."""
RECENT = 128
"""The newest episodes, from which a plan draws."""
PLANNED_STEPS = 10
MISSED = 0.1
"""How far a plan's rates are off, each by itself: the standard deviation of their logarithm."""

Drift = Callable[[int], float]
"""The share of episodes that are of the later kind, by the number of their group."""


class TunedRun(ModelledRun):
    """One run with the knobs :data:`ENGINES` and :data:`DEPTH`, as its recipe's section ``tune`` says.

    Attributes:
        lines: the journal of its moves.
        seen: each step, as the controller was shown it.
        settings: the setting that each was made with.

    Args:
        kinds: the episodes that it begins with, and those that it drifts to.
        begun: the step that a run was killed after, which this one goes on from, with its journal ``lines``.
    """

    def __init__(
        self,
        recipe: Recipe,
        rates: Rates,
        kinds: tuple[ModelEpisodes, ModelEpisodes],
        drift: Drift,
        *,
        seed: int,
        steps: int,
        begun: int = 0,
        lines: Sequence[Line] = (),
    ) -> None:
        super().__init__(recipe, rates, kinds[0], seed=seed, steps=steps)
        assert recipe.tune is not None
        self._kinds, self._drift, self._begun = kinds, drift, begun
        self._recent: deque[ModelEpisode] = deque(maxlen=RECENT)
        self._known = _missed(rates, seed)
        self._size = recipe.generators.count
        self._planning = False
        self.controller = Controller(recipe.tune, setting_of(recipe), steps=begun + steps, lines=lines)
        self.lines: list[Line] = [*lines, *self.controller.said]
        self.seen: list[Seen] = []
        self.settings: list[Setting] = []

    def draw(self, ticket: Ticket, index: int) -> tuple[ModelEpisode, bool]:
        """Return the episode of a sample, drawn from what the workload drifts between; no environment breaks."""
        later = uniform(self._seed, ticket.group_id, index, 8) < self._drift(int(ticket.group_id))
        episode = self._kinds[later].draw(self._seed, ticket.group_id, index)
        self._recent.append(episode)
        return episode, False

    @property
    def setting(self) -> dict[str, int]:
        """How the knobs stand."""
        return {ENGINES: self._size, DEPTH: self._buffer.depth}

    def _pace(self, batch: Batch, time: TimeSplit) -> None:
        sampled = [each for row in batch.rows for each in row.sampled]
        tokens = [(batch.version - version, count) for version, count in sampled if version >= batch.oldest_version]
        stale = sum(age * count for age, count in tokens) / max(1, sum(count for _, count in tokens))
        seen = Seen(self._begun + self._step, time.trained_tokens, time.trajectories, time.seconds, stale)
        self.seen.append(seen)
        self.settings.append(self.setting)
        self.lines += self.controller.step(seen, self.setting, arrived=self._arrived)
        self._act()

    @property
    def _arrived(self) -> bool:
        return sum(worker.alive for worker in self._workers) == self._size

    def _act(self) -> None:
        controller = self.controller
        if controller.asks and not self._planning:
            self._planning = True
            self._events.after(PLAN_S, partial(self._planned, (dict(controller.target), *controller.asks)))
        if (turn := controller.turn) is not None:
            if turn.knob == DEPTH:
                self._buffer.pace(turn.to)
            else:
                self._resize(turn.to)
            controller.made()
            self._settle()

    def _planned(self, settings: Sequence[Setting]) -> None:
        self._planning = False
        present, *others = [self._foresee(setting) for setting in settings]
        self.lines += self.controller.planned(present, others, self.setting)
        self._act()

    def _foresee(self, setting: Setting) -> Foreseen:
        episodes = ModelEpisodes([[episode] for episode in self._recent])
        recipe = with_setting(self._recipe, setting)
        found = ModelledRun(recipe, self._known, episodes, seed=self._step, steps=PLANNED_STEPS).run()
        return Foreseen(setting, found.trained_tokens_per_s, found.staleness_mean)

    def _resize(self, size: int) -> None:
        there = [worker for worker in self._workers if worker.alive]
        for worker in there[size:]:
            worker.die()
            self._deliveries.leave(worker.worker_id)
            self._look_at_delivery()
            self._buffer.hand_back(worker.worker_id, "ended")
        for _ in range(size - self._size):
            self._events.after(self._rates.engine.start.value, self._come_up)
        self._size = size

    def _come_up(self) -> None:
        if sum(worker.alive for worker in self._workers) >= self._size:
            return  # it was taken back meanwhile
        worker: ModelWorker = self._worker(f"newcomer-{len(self._workers)}", self._recipe.generators.max_running)
        worker.engine.version = self._deliveries.newest or PolicyVersion(0)
        self._workers.append(worker)
        self._deliveries.join(worker.worker_id, "", waited_for=False)
        self._deliver_to(worker)
        worker.look_for_room()


def _missed(rates: Rates, seed: int) -> Rates:
    """The rates as a fit finds them."""

    def off(rate: Rate, number: int) -> Rate:
        normal = sum(uniform(seed, number, each, 9) for each in range(12)) - 6
        return Rate(rate.value * math.exp(MISSED * normal), "a fit")

    def of(section: EngineRates | LearnerRates, names: Sequence[str], first: int) -> dict[str, Rate]:
        return {name: off(getattr(section, name), first + number) for number, name in enumerate(names)}

    engine = msgspec.structs.replace(rates.engine, **of(rates.engine, ("step", "request", "prompt_token", "turn"), 0))
    learner = msgspec.structs.replace(rates.learner, **of(rates.learner, ("step", "token"), 4))
    return msgspec.structs.replace(rates, engine=engine, learner=learner)
