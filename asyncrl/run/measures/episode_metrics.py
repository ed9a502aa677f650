"""Metrics of the episodes that finished since the last training step: what environments reported, how long things took.

Finished episodes are all that were handed in for training, before the buffer's filters, so the fast ones come first;
``reward/...`` and ``episode/...`` are of the trained ones. ``environment/...`` is of all environments together, ``member/...`` of
each one of a mixture, and ``source/...`` of each task source where there are several. Percentiles are read from histograms
added over all generators (:mod:`asyncrl.core.measures.latencies`), and are at most 9 % off.
"""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from functools import reduce

from asyncrl.core.batch import Batch, BatchEpisode
from asyncrl.core.measures.counters import added
from asyncrl.core.measures.latencies import Latencies
from asyncrl.core.measures.metrics import Metric, Reading, Reduction
from asyncrl.core.recipe.environment import EnvironmentConfig, MixedEnvironmentConfig, member_of
from asyncrl.core.trajectory import StopReason
from asyncrl.generators.finished_episodes import OTHER, EpisodeCounts, FinishedEpisodes, ReportedMetric, ToolCounts
from asyncrl.learners import metrics as learner_metrics
from asyncrl.run.measures import metrics as run_metrics
from asyncrl.run.measures.metric_names import FrequentNames, safe_name

MOST_SOURCES, MOST_METRICS, MOST_TOOLS = 20, 50, 20
"""How many task sources, metrics of the environment and tools have curves of their own."""
MOST_METRICS_OF_A_SOURCE = 10
"""How many of the environment's metrics have curves by task source."""


REWARD_PARTS, ENVIRONMENT, SOURCE, MEMBER, TOOL, LATENCY = "reward/", "environment/", "source/", "member/", "tool/", "latency/"
"""Where names of metrics begin: those of the parts of the reward (among others), and of what environments report, in all and by
task source and member, of tools and of latencies."""


def _mean(name: str, unit: str, meaning: str) -> Metric:
    return Metric(name, unit, Reduction.MEAN, meaning)


def finished_metrics(prefix: str, whose: str) -> dict[str, Metric]:
    """The metrics of finished episodes, by short name.

    Args:
        prefix: where their names begin.
        whose: which episodes they are of.
    """
    metrics = {
        "reward_mean": _mean(f"{prefix}/reward_mean", "reward", f"mean final reward of {whose}, before the buffer's filters"),
        "turns": _mean(f"{prefix}/turns", "turns", f"turns of {whose}"),
        "tokens": _mean(f"{prefix}/tokens", "tokens", f"length of {whose}, prompt and answers of tools included"),
        "sampled_tokens": _mean(f"{prefix}/sampled_tokens", "tokens", f"tokens that the policy sampled in {whose}"),
        "empty_answers": _mean(f"{prefix}/empty_answers", "share", f"share of {whose} that ended with an answer without text"),
        "truncated_calls": _mean(
            f"{prefix}/truncated_calls", "share", f"share of {whose} that a limit cut off in the middle of a tool call"
        ),
    }
    stopped = {
        f"stopped_{reason}": _mean(f"{prefix}/stopped_{reason}", "share", f"share of {whose} whose stop reason was {reason}")
        for reason in StopReason
    }
    return metrics | stopped


FINISHED = finished_metrics("finished", "finished episodes")


_OWN_METRICS = {
    value.name for module in (run_metrics, learner_metrics) for value in vars(module).values() if isinstance(value, Metric)
}
"""Metrics that a part of the reward could be mistaken for."""


def reward_metric(name: str) -> Metric:
    """The metric of the part of the reward that the environment calls ``name``."""
    own = f"{REWARD_PARTS}{name}" in _OWN_METRICS
    meaning = f"`{name}`, a part of the reward: its sum over an episode; mean over the batch's episodes, 0 where it is missing"
    return _mean(f"{REWARD_PARTS}part_{name}" if own else f"{REWARD_PARTS}{name}", "reward", meaning)


REWARD_OTHER = _mean(
    f"{REWARD_PARTS}{OTHER}",
    "reward",
    f"all parts of the reward together that are not among the {MOST_METRICS} most frequent names",
)


def environment_metric(name: str) -> Metric:
    """The metric of what the environment reports as ``name``."""
    meaning = (
        f"`{name}`, which the environment reports: its sum over an episode; mean over the episodes that were handed in since the "
        "training step before, trained or not, 0 where it is missing"
    )
    return _mean(f"{ENVIRONMENT}{name}", "1", meaning)


ENVIRONMENT_OTHER = _mean(
    f"{ENVIRONMENT}{OTHER}",
    "metrics",
    f"metrics per finished episode that are not among the {MOST_METRICS} names that the environment reports most often",
)


def source_metrics(source: str) -> dict[str, Metric]:
    """The metrics of one task source, by short name."""
    of_source = finished_metrics(f"{SOURCE}{source}", f"finished episodes of `{source}`")
    return of_source | {
        "episodes": Metric(f"{SOURCE}{source}/episodes", "episodes", Reduction.SUM, f"finished episodes of `{source}`"),
        "trained_share": _mean(f"{SOURCE}{source}/trained_share", "share", f"share of `{source}` in the batch's episodes"),
        "trained_reward_mean": _mean(
            f"{SOURCE}{source}/trained_reward_mean", "reward", f"mean final reward of the batch's episodes of `{source}`"
        ),
        "draw_share": _mean(
            f"{SOURCE}{source}/draw_share",
            "share",
            f"share of `{source}` in the tasks that are drawn: its weight, which a curriculum may change",
        ),
    }


def source_environment_metric(source: str, name: str) -> Metric:
    """The metric of what the environment reports as ``name`` in tasks of one source."""
    metric = environment_metric(name)
    return _mean(f"{SOURCE}{source}/{metric.name}", metric.unit, f"{metric.meaning}; episodes of `{source}`")


def member_metrics(member: str) -> dict[str, Metric]:
    """The metrics of one member of a mixture of environments, by short name."""
    whose = f"finished episodes of member `{member}`"
    episodes = Metric(f"{MEMBER}{member}/episodes", "episodes", Reduction.SUM, whose)
    return finished_metrics(f"{MEMBER}{member}", whose) | {"episodes": episodes}


def member_environment_metric(member: str, name: str) -> Metric:
    """The metric of what one member of a mixture reports as ``name``."""
    metric = environment_metric(name)
    return _mean(f"{MEMBER}{member}/{metric.name}", metric.unit, f"{metric.meaning}; episodes of member `{member}`")


def tool_metrics(tool: str) -> dict[str, Metric]:
    """The metrics of one tool, by short name. Calls that cannot be read or do not fit reach no tool.

    In a mixture of environments a tool is called ``member.tool``.
    """
    return {
        "calls": Metric(f"{TOOL}{tool}/calls", "calls", Reduction.SUM, f"calls that reached `{tool}`"),
        "error_share": _mean(f"{TOOL}{tool}/error_share", "share", f"share of the calls in which `{tool}` raised"),
        "timeout_share": _mean(
            f"{TOOL}{tool}/timeout_share", "share", f"share of the calls in which `{tool}` passed environment.tool_timeout_s"
        ),
        **_percentiles(f"{TOOL}{tool}/seconds", f"how long a call of `{tool}` took, those that failed included"),
    }


def _percentiles(name: str, meaning: str) -> dict[str, Metric]:
    return {
        f"p{share}": _mean(f"{name}_p{share}", "s", f"{meaning}: the {share}th percentile, at most 9 % off") for share in (50, 99)
    }


MALFORMED_CALLS = _mean(
    "finished/malformed_calls", "share", "share of the calls that could not be read, named no tool or did not fit its parameters"
)
LATENCIES = {
    "queue": _percentiles(
        f"{LATENCY}queue", "how long an episode waited for a place in the engine, after its ticket was accepted"
    ),
    "scoring": _percentiles(f"{LATENCY}scoring", "how long a finished episode waited for the reward model's score"),
    "episode": _percentiles(f"{LATENCY}episode", "how long an episode took from its ticket's acceptance until it was handed in"),
}


class EpisodeMetrics:
    """Makes the readings of each training step, and remembers which names have curves.

    Args:
        environment: what the episodes are played in.
    """

    def __init__(self, environment: EnvironmentConfig) -> None:
        self._environment = environment
        self._sources, self._parts = FrequentNames(MOST_SOURCES), FrequentNames(MOST_METRICS)
        self._metrics, self._metrics_of_sources = FrequentNames(MOST_METRICS), FrequentNames(MOST_METRICS_OF_A_SOURCE)
        self._metrics_of_members = FrequentNames(MOST_METRICS)
        self._tools = FrequentNames(MOST_TOOLS)
        self._stopped: set[StopReason] = set()
        self._noticed: set[str] = set()

    def readings(self, finished: FinishedEpisodes, batch: Batch, draw_shares: Mapping[str, float]) -> list[Reading]:
        """Return the readings of one training step.

        Args:
            finished: the episodes that finished since the step before.
            batch: the batch of the training step.
            draw_shares: the share of each task source in the draws.
        """
        return [
            *self._finished_readings(finished),
            *self._source_readings(finished, batch, draw_shares),
            *self._member_readings(finished),
        ]

    def reward_parts(self, episodes: Sequence[BatchEpisode]) -> Iterator[Reading]:
        """Yield readings of the parts of the reward that have names.

        Args:
            episodes: the trained episodes of the batch.
        """
        parts: dict[str, ReportedMetric] = {}
        for episode in episodes:
            for name, value in episode.reward_parts.items():
                part = parts.setdefault(name, ReportedMetric())
                part.episodes += 1
                part.total += value
        for name, reported in self._parts.fold(parts, _episodes).items():
            metric = REWARD_OTHER if name == OTHER else reward_metric(name)
            yield Reading(metric, reported.total / len(episodes), len(episodes))

    def notices(self) -> Iterator[str]:
        """Yield a sentence about each kind of name of which there are too many, once."""
        kinds = {
            "task sources": (self._sources, MOST_SOURCES),
            "metrics of the environment": (self._metrics, MOST_METRICS),
            "tools": (self._tools, MOST_TOOLS),
            "parts of the reward": (self._parts, MOST_METRICS),
        }
        for kind, (names, most) in kinds.items():
            if names.folded and kind not in self._noticed:
                self._noticed.add(kind)
                yield f"there are more than {most} {kind}: the most frequent {most} are tracked by name, all others as {OTHER}"

    def _finished_readings(self, finished: FinishedEpisodes) -> Iterator[Reading]:
        whole = reduce(added, finished.sources.values(), EpisodeCounts())
        if whole.episodes:
            yield from self._episode_readings(FINISHED, whole)
            for name, reported in self._metrics.fold(whole.metrics, _episodes).items():
                yield _environment_reading(ENVIRONMENT_OTHER if name == OTHER else environment_metric(name), reported, whole)
        if finished.calls:
            yield Reading(MALFORMED_CALLS, finished.malformed_calls / finished.calls, finished.calls)
        for tool, counts in self._tools.fold(finished.tools, lambda tool: tool.calls).items():
            yield from _tool_readings(tool_metrics(tool), counts)
        for name, metrics in LATENCIES.items():
            yield from _latency_readings(metrics, getattr(finished, name))

    def _episode_readings(self, metrics: Mapping[str, Metric], counts: EpisodeCounts) -> Iterator[Reading]:
        episodes = counts.episodes
        for name, total in (
            ("reward_mean", counts.reward),
            ("turns", counts.turns),
            ("tokens", counts.tokens),
            ("sampled_tokens", counts.sampled_tokens),
            ("empty_answers", counts.empty_answers),
            ("truncated_calls", counts.truncated_calls),
        ):
            yield Reading(metrics[name], total / episodes, episodes)
        self._stopped |= {reason for reason, number in counts.stopped.items() if number}
        for reason in sorted(self._stopped):  # those that never happened have no curve
            yield Reading(metrics[f"stopped_{reason}"], counts.stopped.get(reason, 0) / episodes, episodes)

    def _source_readings(self, finished: FinishedEpisodes, batch: Batch, draw_shares: Mapping[str, float]) -> Iterator[Reading]:
        """Readings by task source; none where there is only one, since those of all finished episodes say the same."""
        if len(draw_shares) < 2:
            return
        for source, counts in self._sources.fold(finished.sources, _episodes).items():
            metrics = source_metrics(source)
            yield Reading(metrics["episodes"], counts.episodes)
            yield from self._episode_readings(metrics, counts)
            for name, reported in self._metrics_of_sources.fold(counts.metrics, _episodes).items():
                if name != OTHER:
                    yield _environment_reading(source_environment_metric(source, name), reported, counts)
        trained = batch.trained
        for name, share in sorted(draw_shares.items(), key=lambda item: -item[1])[:MOST_SOURCES]:
            metrics = source_metrics(safe_name(name))
            yield Reading(metrics["draw_share"], share)
            rewards = [episode.reward for episode in trained if episode.source == name]
            yield Reading(metrics["trained_share"], len(rewards) / len(trained), len(trained))
            if rewards:
                yield Reading(metrics["trained_reward_mean"], statistics.fmean(rewards), len(rewards))

    def _member_readings(self, finished: FinishedEpisodes) -> Iterator[Reading]:
        """Readings by member of a mixture: those of its sources together."""
        if not isinstance(self._environment, MixedEnvironmentConfig):
            return
        members = dict.fromkeys(self._environment.members, EpisodeCounts())
        for source, counts in finished.sources.items():
            if (member := member_of(self._environment, source)) in members:
                members[member] = added(members[member], counts)
        for member, counts in members.items():
            metrics = member_metrics(member)
            yield Reading(metrics["episodes"], counts.episodes)
            if counts.episodes:
                yield from self._episode_readings(metrics, counts)
            for name, reported in self._metrics_of_members.fold(counts.metrics, _episodes).items():
                if name != OTHER:
                    yield _environment_reading(member_environment_metric(member, name), reported, counts)


def _episodes(counts: EpisodeCounts | ReportedMetric) -> int:
    return counts.episodes


def _environment_reading(metric: Metric, reported: ReportedMetric, of: EpisodeCounts) -> Reading:
    value = reported.episodes if metric is ENVIRONMENT_OTHER else reported.total
    return Reading(metric, value / of.episodes, of.episodes)


def _tool_readings(metrics: Mapping[str, Metric], counts: ToolCounts) -> Iterator[Reading]:
    yield Reading(metrics["calls"], counts.calls)
    yield Reading(metrics["error_share"], counts.errors / counts.calls, counts.calls)
    yield Reading(metrics["timeout_share"], counts.timeouts / counts.calls, counts.calls)
    yield from _latency_readings(metrics, counts.latencies)


def _latency_readings(metrics: Mapping[str, Metric], latencies: Latencies) -> Iterator[Reading]:
    if count := latencies.count:
        yield Reading(metrics["p50"], latencies.percentile(0.50), count)
        yield Reading(metrics["p99"], latencies.percentile(0.99), count)
