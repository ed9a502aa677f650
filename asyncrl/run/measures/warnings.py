"""Warnings about a run: finds what a person would see in its curves.

It looks at the last :data:`WINDOW` training steps together, so that one odd step is no alarm; a run of fewer steps cannot have
learned, and is told nothing of that. Each finding is one sentence: what was seen, why it matters or what causes it, and what to
do. The keys say which findings are the same, so that whoever shows them shows each once a run.
"""

import math
import statistics
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from functools import reduce

import msgspec

from asyncrl.core.measures.counters import added
from asyncrl.core.measures.gap_cause import GapEvidence, GapSides, likely_cause
from asyncrl.core.measures.units import percent
from asyncrl.core.recipe.advantage import GaeAdvantageConfig, GdpoAdvantageConfig, ReinforcePlusPlusAdvantageConfig
from asyncrl.core.recipe.algorithm import TurnCreditConfig
from asyncrl.core.recipe.environment import member_place
from asyncrl.core.recipe.rules.algorithm import TAKE_NO_PENALTY
from asyncrl.core.recipe.schema import Recipe
from asyncrl.core.trajectory import StopReason
from asyncrl.generators.finished_episodes import EpisodeCounts, FinishedEpisodes, ToolCounts
from asyncrl.run.measures.metric_names import safe_name

WINDOW = 4
"""Training steps that are looked at together; all steps of a shorter run."""
MOST = 0.5
"""Share from which on something happens in most episodes or calls."""
OFTEN_LATE, OFTEN_FAILED = 0.2, 0.25
"""Shares of a tool's calls above which it times out, or fails, too often."""
FEWEST_CALLS, FEWEST_EPISODES = 20, 16
"""Fewer calls of a tool, or fewer episodes, say nothing."""
COLLAPSED = 0.3
"""Effective sample size, as a share of the sample, below which it has collapsed."""
MOSTLY_FILTERED = 0.75
"""Share of the complete groups from which on they are mostly filtered. Filters are expected to leave out half of them."""
GROWN = 3.0
"""How many times its size at the beginning, or since the run was resumed, the gap between learner and engine must have, to have
grown."""
STANDARD_ERRORS = 2.0
"""By how many standard errors an evaluation must be below the first one."""


class RunWarning(msgspec.Struct, frozen=True):
    """Something that a person should look at; equal ``key``: the same finding."""

    key: str
    sentence: str


class StepSigns(msgspec.Struct, frozen=True, kw_only=True):
    """The signs of one training step.

    Attributes:
        reward: mean final reward of the batch.
        zero_variance: share of its groups whose rewards are all equal.
        grad_norm: gradient norm; None if nothing was trained.
        sample_size: effective sample size, as a share of the sample; None if it is not known.
        gap: what is known of the gap between the log-probabilities of learner and engines.
        routed: whether the model has experts.
        filtered, complete: groups that filters left out, and all that were complete, since the step before.
        finished: the episodes that finished since the step before.
    """

    reward: float
    zero_variance: float
    grad_norm: float | None = None
    sample_size: float | None = None
    gap: GapEvidence = GapEvidence()
    routed: bool = False
    filtered: int = 0
    complete: int = 0
    finished: FinishedEpisodes = msgspec.field(default_factory=FinishedEpisodes)


class WarningSigns:
    """Looks for what is wrong with the run of ``recipe``.

    Args:
        able: whether the model may know how to play; of one that does not, its failures are no news.
    """

    def __init__(self, recipe: Recipe, able: bool = True) -> None:
        self._recipe, self._able = recipe, able
        self._window: deque[StepSigns] = deque(maxlen=min(WINDOW, recipe.steps))
        self._first_gaps: list[float] = []

    def step(self, step: int, signs: StepSigns) -> Iterator[RunWarning]:
        """Take in training step number ``step``, and yield all that is wrong now."""
        self._window.append(signs)
        if len(self._window) < (self._window.maxlen or 0):
            return
        finished = reduce(added, (each.finished for each in self._window), FinishedEpisodes())
        episodes = reduce(added, finished.sources.values(), EpisodeCounts())
        if len(self._window) == WINDOW:
            yield from self._no_variance()
            yield from self._no_gradient(step)
        if episodes.episodes >= FEWEST_EPISODES and self._able:
            yield from self._cut(episodes)
            yield from self._empty(episodes)
        yield from self._calls(finished)
        yield from self._sample_size()
        yield from self._gap()
        yield from self._filtered()

    def evaluation(self, first: float, rewards: Sequence[float]) -> Iterator[RunWarning]:
        """Take in an evaluation of these rewards, in a run whose first one had the mean reward ``first``."""
        mean = statistics.fmean(rewards)
        # The first evaluation is as uncertain as this one.
        uncertain = statistics.stdev(rewards) * (2 / len(rewards)) ** 0.5 if len(rewards) > 1 else 0.0
        if first - mean > STANDARD_ERRORS * uncertain:
            yield RunWarning(
                "evaluation",
                f"the evaluation reward is {mean:.3f} and was {first:.3f} before training: the policy has become worse on "
                "held-out tasks; look at its episodes, lower learner.lr, or keep the policy near its start (algorithm.kl). Later "
                "evaluations may recover",
            )

    @property
    def _steps(self) -> str:
        return f"the last {len(self._window)} training steps" if len(self._window) > 1 else "the last training step"

    def _no_advantage(self) -> bool:
        """Whether all advantages are 0, because they come from how final rewards differ within a group, and these are equal."""
        algorithm = self._recipe.algorithm
        of_batch = isinstance(algorithm.advantage, GaeAdvantageConfig | GdpoAdvantageConfig | ReinforcePlusPlusAdvantageConfig)
        if of_batch or algorithm.teacher is not None:
            return False
        return not isinstance(algorithm.credit, TurnCreditConfig) and all(signs.zero_variance == 1 for signs in self._window)

    def _no_variance(self) -> Iterator[RunWarning]:
        if not self._no_advantage():
            return
        seen = f"the rewards of every group were equal in {self._steps}"
        mean = statistics.fmean(signs.reward for signs in self._window)
        remedy = (
            "check the reward, choose easier tasks (harder ones if rewards are high), or raise batch.group_size or "
            "sampling.temperature"
            if self._able
            else "the tiny model knows nothing of the environment; name a better one in model.path"
        )
        yield RunWarning("no_variance", f"{seen} (mean {mean:.3g}), so nothing is learned: {remedy}")

    def _no_gradient(self, step: int) -> Iterator[RunWarning]:
        advantage = self._recipe.algorithm.advantage
        if isinstance(advantage, GaeAdvantageConfig) and step - len(self._window) < advantage.critic_warmup_steps:
            return  # only the critic is trained
        if self._no_advantage() or any(signs.grad_norm != 0 for signs in self._window):
            return
        yield RunWarning(
            "no_gradient",
            f"the gradient norm was 0 in {self._steps} although rewards differ: every token is clipped, masked or rejected; "
            "widen what is close to 1 of loss/clip_fraction, correction/masked_fraction and correction/rejected_fraction",
        )

    def _cut(self, episodes: EpisodeCounts) -> Iterator[RunWarning]:
        recipe = self._recipe
        limits = {
            StopReason.TURN_LENGTH: f"sampling.max_turn_tokens = {recipe.sampling.max_turn_tokens}",
            StopReason.CONTEXT_LENGTH: f"model.max_context = {recipe.model.max_context}",
            StopReason.MAX_TURNS: _limit(recipe, "max_turns"),
            StopReason.MAX_CALLS: _limit(recipe, "max_calls"),
            StopReason.SAMPLED_TOKENS: _limit(recipe, "max_sampled_tokens"),
            StopReason.EPISODE_TIMEOUT: _limit(recipe, "episode_timeout_s"),
        }
        cut = Counter({reason: episodes.stopped.get(reason, 0) for reason in limits})
        share = cut.total() / episodes.episodes
        if share <= MOST:
            return
        ((reason, number),) = cut.most_common(1)
        limit, algorithm = limits[reason], recipe.algorithm
        can_penalise = algorithm.overlong is None and not isinstance(algorithm.advantage, TAKE_NO_PENALTY)
        penalty = " (algorithm.overlong)" if can_penalise else ""
        within = episodes.truncated_calls / episodes.episodes
        calls = f" ({percent(within)} within a tool call, which is not run)" if within else ""
        yield RunWarning(
            f"cut_{reason}",
            f"{percent(share)} of the episodes in {self._steps} were cut{calls}, mostly ({percent(number / episodes.episodes)}) "
            f"by {limit}, and rewarded for what they had reached: raise {limit.partition(' ')[0]}, or have the policy answer in "
            f"less{penalty}",
        )

    def _empty(self, episodes: EpisodeCounts) -> Iterator[RunWarning]:
        share = episodes.empty_answers / episodes.episodes
        if share > MOST:
            yield RunWarning(
                "empty_answers",
                f"{percent(share)} of the episodes in {self._steps} ended with an empty answer: give it less reward than a wrong "
                "one, lower learner.lr, or go back to an earlier checkpoint",
            )

    def _calls(self, finished: FinishedEpisodes) -> Iterator[RunWarning]:
        if self._able and finished.calls >= FEWEST_CALLS and finished.malformed_calls > MOST * finished.calls:
            yield RunWarning(
                "malformed_calls",
                f"{percent(finished.malformed_calls / finished.calls)} of the tool calls in {self._steps} could not be read, "
                "named no tool or did not fit its parameters: check model.tool_parser, and what the prompt says of calls",
            )
        for name, tool in finished.tools.items():
            if tool.calls >= FEWEST_CALLS:
                yield from self._tool(name, tool)

    def _tool(self, name: str, tool: ToolCounts) -> Iterator[RunWarning]:
        if tool.timeouts > OFTEN_LATE * tool.calls:
            yield RunWarning(
                f"tool_timeouts_{safe_name(name)}",
                f"tool {name} timed out in {percent(tool.timeouts / tool.calls)} of its {tool.calls} calls in {self._steps}; "
                f"raise {_limit(self._recipe, 'tool_timeout_s', name.partition('.')[0])}, make the tool faster, or lower "
                "generators.max_running if it cannot serve so many at once",
            )
        if tool.errors > OFTEN_FAILED * tool.calls:
            yield RunWarning(
                f"tool_errors_{safe_name(name)}",
                f"tool {name} failed in {percent(tool.errors / tool.calls)} of its {tool.calls} calls in {self._steps}; "
                "`asyncrl show RUN` has what each of them was answered with, and the logs of the generators have the "
                "tracebacks of all but those that the tool reported by ToolError. If the tool is right, its description does not "
                "tell the model how to call it",
            )

    def _sample_size(self) -> Iterator[RunWarning]:
        known = [signs.sample_size for signs in self._window if signs.sample_size is not None]
        if known and statistics.fmean(known) < COLLAPSED:
            staleness = self._recipe.buffer.max_staleness
            yield RunWarning(
                "sample_size",
                f"the effective sample size was {percent(statistics.fmean(known))} of the sample in {self._steps}: the policy "
                "has moved far from the one that sampled, and a few tokens outweigh all others; lower learner.lr, "
                f"buffer.max_staleness = {staleness} or buffer.pipeline_depth, or bound the weights (algorithm.correction)",
            )

    def _gap(self) -> Iterator[RunWarning]:
        """Warn of a gap of fresh tokens that grows, with its likely cause."""
        known = [signs.gap.fresh for signs in self._window if signs.gap.fresh is not None]
        if len(known) < len(self._window):
            return
        if not self._first_gaps:
            self._first_gaps = known
        sides = gap_sides(self._recipe, routed=any(signs.routed for signs in self._window))
        first, now = statistics.fmean(self._first_gaps), statistics.fmean(known)
        if now > GROWN * first and now > sides.rounding:
            yield RunWarning(
                "gap",
                f"on tokens of the version being trained, learner and engines differ by {now:.3g} nats in {self._steps}, "
                f"and by {first:.3g} in the first {len(self._first_gaps)} since it was launched or resumed. Likely cause: "
                f"{likely_cause(GapEvidence.mean([signs.gap for signs in self._window]), sides)}. "
                "`asyncrl replay RUN --step N --gap` shows the tokens",
            )

    def _filtered(self) -> Iterator[RunWarning]:
        filtered = sum(signs.filtered for signs in self._window)
        complete = sum(signs.complete for signs in self._window)
        if complete and filtered > MOSTLY_FILTERED * complete:
            yield RunWarning(
                "filtered",
                f"filters left out {filtered} of {complete} groups in {self._steps}, so most of the generation is for nothing; "
                "choose tasks that the policy sometimes solves (another mix of tasks.train, or a tasks.curriculum), or widen "
                "buffer.filters",
            )


def gap_sides(recipe: Recipe, *, routed: bool) -> GapSides:
    """Return what a recipe says of learner and engines; ``routed`` tells that the model has experts."""
    engines = frozenset(pool.dtype for pool in recipe.generators.training.values())
    return GapSides(learner=recipe.learner.dtype, engines=engines, routes=routed and not recipe.learner.experts.replay)


def _limit(recipe: Recipe, key: str, of: str = "") -> str:
    """A limit of the environment's episodes, e.g. ``environment.max_turns = 6``: that of one member, or the lowest of all."""
    limits = {name: getattr(member, key) for name, member in recipe.environment.by_member.items()}
    name = of if of in limits else min(limits, key=lambda member: math.inf if limits[member] is None else float(limits[member]))
    value = "null" if limits[name] is None else f"{limits[name]:g}"
    return f"{member_place(name)}.{key} = {value}"
