"""Where the time of training steps went: seconds on the learner's side and on the generators', made where they are measured.

A rank, the train pump, an engine and a worker each fill in what they measure; ``+`` makes one of them, and one of several steps.
What always holds: on each side the parts add up to its time. What no part accounts for is a part of its own: ``other`` and
``nothing``.
"""

import msgspec

from asyncrl.core.measures.counters import Counters
from asyncrl.core.measures.metrics import Metric, Reading, Reduction
from asyncrl.core.measures.step_moments import StepMoments

LEARNER_TIME, GENERATOR_TIME = "time/learner/", "time/generators/"
"""Where the names of the metrics of either side's parts begin."""


def _metrics(side: str, meanings: dict[str, str]) -> dict[str, Metric]:
    return {part: Metric(f"{side}{part}", "share", Reduction.MEAN, meaning) for part, meaning in meanings.items()}


LEARNER = _metrics(
    LEARNER_TIME,
    {
        "data": "rank 0 of the last pipeline stage fetched trajectories, packed micro-batches and computed advantages",
        "forward": "that rank computed outputs and losses, under the reference and the proximal policy too",
        "backward": "that rank computed gradients and added them over ranks, or waited for other pipeline stages",
        "optimizer": "that rank computed the gradient's norm and updated the weights",
        "writing": "the learner wrote the weights of the new version",
        "delivering": "the learner waited until every engine had the version before",
        "checkpointing": "training waited for a checkpoint, most of which is written beside the next step",
        "other": "none of these: calls from process to process, waiting for other ranks to finish, recording, waiting for room "
        "on the disk",
        "waiting": "the learner waited for a batch",
    },
)
"""The parts of a training step on the learner's side, in the order in which they are drawn. An evaluation is no part: the learner
never waits for one."""

GENERATORS = _metrics(
    GENERATOR_TIME,
    {
        "prefill": "engines computed prompts and answers of tools, in requests of training episodes",
        "decode": "engines sampled tokens of training episodes, or such requests waited for their turn",
        "evaluating": "engines served requests of an evaluation",
        "evaluation_tools": "engines had no request, because episodes of an evaluation were in tools and environments",
        "tools": "engines had no request, because episodes were in tools and environments",
        "scoring": "engines had no request, because finished episodes waited for the reward model",
        "tickets": "engines had no request, and room for episodes, but no ticket could be had without going over the pace",
        "loading": "engines had no request, and asked for no ticket while weights came in",
        "paused": "engines were paused to exchange weights",
        "nothing": "none of these; also while a generator that died has no successor yet",
    },
)
"""The parts of a training step on the generators' side, as means over the generators, in the order in which they are drawn."""

WAITS = {LEARNER["waiting"], *(GENERATORS[part] for part in ("tickets", "loading", "paused", "nothing"))}
"""The parts in which a side only waits."""

IDLE_GENERATORS = Metric("idle/generators", "share", Reduction.MEAN, "share of time engines had nothing running or were paused")
IDLE_LEARNER = Metric("idle/learner", "share", Reduction.MEAN, "share of time the learner neither trained nor wrote weights")


def idle_in_pool(pool: str) -> Metric:
    """The metric of the idle share of the engines of one of several pools."""
    meaning = f"share of time the engines of pool `{pool}` had nothing running or were paused; only with several pools that train"
    return Metric(f"idle/generators.{pool}", "share", Reduction.MEAN, meaning)


class IdleShares(msgspec.Struct, frozen=True):
    """Share of the time, in [0, 1], in which each side did nothing: see :data:`IDLE_GENERATORS` and :data:`IDLE_LEARNER`."""

    generators: float = 0.0
    learner: float = 0.0


class LearnerTime(Counters, msgspec.Struct, frozen=True):
    """Seconds of the learner's side, by the parts of :data:`LEARNER`.

    Attributes:
        training: training batches, as the driver sees it; ``data``, ``forward``, ``backward`` and ``optimizer`` are what one rank
            did in it.
        cpu: processor time of all ranks' processes in the training steps.
    """

    waiting: float = 0.0
    training: float = 0.0
    data: float = 0.0
    forward: float = 0.0
    backward: float = 0.0
    optimizer: float = 0.0
    writing: float = 0.0
    delivering: float = 0.0
    checkpointing: float = 0.0
    cpu: float = 0.0


class GeneratorTime(Counters, msgspec.Struct, frozen=True):
    """Seconds of generators, by the parts of :data:`GENERATORS`, and seconds that are no parts because they overlap.

    Attributes:
        sampling: requests of training episodes ran: ``prefill`` and ``decode`` together.
        prefill, decode: seconds of the engines' steps, as far as they computed prompts and sampled tokens. Only their ratio is
            of use: an engine reports them later than the rest.
        requests: seconds that requests of training episodes took, summed over all requests.
        episodes: seconds for which training episodes took room, summed over all episodes.
        scores: seconds that finished episodes waited for a reward model's score, summed over all episodes.
        held_back: there was room for a whole group but no ticket, whether or not requests ran.
        engine_cpu, front_end_cpu: processor time of the engines' processes, and of the workers' own.
        steps: sums over the engines' steps, reported as late as ``prefill`` and ``decode``.
    """

    sampling: float = 0.0
    evaluating: float = 0.0
    evaluation_tools: float = 0.0
    tools: float = 0.0
    scoring: float = 0.0
    tickets: float = 0.0
    loading: float = 0.0
    paused: float = 0.0
    nothing: float = 0.0
    prefill: float = 0.0
    decode: float = 0.0
    requests: float = 0.0
    episodes: float = 0.0
    scores: float = 0.0
    held_back: float = 0.0
    engine_cpu: float = 0.0
    front_end_cpu: float = 0.0
    steps: StepMoments = StepMoments()

    @property
    def wall(self) -> float:
        """The whole time: the sum of :data:`PARTS`."""
        return float(sum(getattr(self, part) for part in PARTS))

    @property
    def idle(self) -> float:
        """The share of the time in which no request ran or the engine was paused."""
        return _share(sum(getattr(self, part) for part in PARTS if part not in ("sampling", "evaluating")), self.wall)


PARTS = GeneratorTime.__struct_fields__[: GeneratorTime.__struct_fields__.index("nothing") + 1]
"""The fields of :class:`GeneratorTime` that add up to the whole time."""


class TimeSplit(Counters, msgspec.Struct, frozen=True):
    """What one or more training steps took on both sides, and what they made. Fields are sums; properties are shares in [0, 1].

    Attributes:
        seconds: wall time of the steps.
        slots: seconds of all generator slots, whether or not a generator was there.
        cores: seconds, times the share of the cores that the driver may use that were busy with anything.
        trajectories, trained_tokens: episodes and tokens of the batches.
        generated_tokens: tokens that all engines sampled.
    """

    seconds: float = 0.0
    learner: LearnerTime = LearnerTime()
    generators: GeneratorTime = GeneratorTime()
    slots: float = 0.0
    cores: float = 0.0
    trajectories: int = 0
    trained_tokens: int = 0
    generated_tokens: int = 0

    @property
    def trajectories_per_s(self) -> float:
        """Episodes trained per second."""
        return self._per_second(self.trajectories)

    @property
    def trained_per_s(self) -> float:
        """Tokens of the batches per second."""
        return self._per_second(self.trained_tokens)

    @property
    def generated_per_s(self) -> float:
        """Tokens sampled per second."""
        return self._per_second(self.generated_tokens)

    def _per_second(self, number: int) -> float:
        return number / self.seconds if self.seconds > 0 else 0.0

    @property
    def idle(self) -> IdleShares:
        """The idle share of each side."""
        busy = self.learner.training + self.learner.writing
        return IdleShares(self.generators.idle, 1 - self._of_learner(busy) if self.seconds > 0 else 0.0)

    @property
    def training(self) -> float:
        """The learner trained."""
        return self._of_learner(self.learner.training)

    @property
    def waiting(self) -> float:
        """The learner waited for a batch."""
        return self._of_learner(self.learner.waiting)

    @property
    def delivering(self) -> float:
        """The learner waited until every engine had the version before."""
        return self._of_learner(self.learner.delivering)

    @property
    def publishing(self) -> float:
        """The learner wrote weights, or waited until every engine had the version before."""
        return self._of_learner(self.learner.writing + self.learner.delivering)

    @property
    def optimizer(self) -> float:
        """The weights were updated, which takes the same time for any batch."""
        return self._of_learner(self.learner.optimizer)

    @property
    def paused(self) -> float:
        """Engines were paused to load weights."""
        return _share(self.generators.paused, self.generators.wall)

    @property
    def held_back(self) -> float:
        """Engines had room for a group, but got no ticket."""
        return _share(self.generators.held_back, self.generators.wall)

    @property
    def evaluating(self) -> float:
        """Engines served an evaluation, or only its environments were at work."""
        return _share(self.generators.evaluating + self.generators.evaluation_tools, self.generators.wall)

    @property
    def tools(self) -> float:
        """The training episodes' time that they spent outside engines, in tools and environments."""
        episodes = self.generators.episodes
        return 1 - _share(self.generators.requests, episodes) if episodes > 0 else 0.0

    @property
    def scoring(self) -> float:
        """The training episodes' time, the wait for a score included, that they waited for their score."""
        return _share(self.generators.scores, self.generators.episodes + self.generators.scores)

    @property
    def busy_cores(self) -> float:
        """The cores that were busy with anything."""
        return self._of_learner(self.cores)

    @property
    def both_wait(self) -> float:
        """The share of time that would be saved if, with more tickets, engines generated while the learner trains.

        An engine that plays only the last episode of a batch counts as busy, so the true share is larger.
        """
        return max(0.0, min(self.waiting, self.generators.idle - self.paused, self.held_back))

    def _of_learner(self, seconds: float) -> float:
        return _share(seconds, self.seconds)

    def readings(self, so_far: GeneratorTime) -> list[Reading]:
        """Make the readings of both sides' parts and idle shares.

        Args:
            so_far: the generators' time since they began: where engines have reported no steps since the step before, sampling
                is divided as it was until then.
        """
        learner = {part: getattr(self.learner, part, 0.0) for part in LEARNER}
        learner["other"] = max(0.0, self.seconds - sum(learner.values()))
        generators = {part: getattr(self.generators, part) for part in PARTS}
        sampling, nothing = generators.pop("sampling"), generators.pop("nothing")
        computed = self.generators if self.generators.prefill + self.generators.decode > 0 else so_far
        prefill = sampling * _share(computed.prefill, computed.prefill + computed.decode)
        generators |= {"prefill": prefill, "decode": sampling - prefill}
        # The counters are read some milliseconds before the step's end is taken; that must not become a part of its own.
        generators["nothing"] = max(nothing, self.slots - sum(generators.values()))
        return [
            Reading(IDLE_GENERATORS, self.idle.generators),
            Reading(IDLE_LEARNER, self.idle.learner),
            *_readings(LEARNER, learner),
            *_readings(GENERATORS, generators),
        ]


def _share(part: float, whole: float) -> float:
    return min(1.0, max(0.0, part / whole)) if whole > 0 else 0.0


def _readings(metrics: dict[str, Metric], parts: dict[str, float]) -> list[Reading]:
    whole = sum(parts.values())
    return [Reading(metric, _share(parts[part], whole), whole) for part, metric in metrics.items()]
