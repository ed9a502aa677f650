"""Counts what finished episodes report, by task source and by tool.

Every episode that was played for training and handed in is counted once, whatever the buffer makes of it: the filters come
after. Names that environments choose are bounded in number: a worker tells the first :data:`MAX_NAMES` of a kind apart, and
counts all others as :data:`OTHER`.
"""

from collections.abc import Callable
from typing import TypeVar

import msgspec

from asyncrl.core.episode import Episode
from asyncrl.core.measures.counters import Counters
from asyncrl.core.measures.latencies import Latencies
from asyncrl.core.messages import CallOutcome, CallRecord
from asyncrl.core.trajectory import StopReason

MAX_NAMES = 1000
"""How many names of one kind (sources, metrics, tools) a worker tells apart."""
OTHER = "_other"
"""Stands for all further names of a kind."""

Entry = TypeVar("Entry")


class ReportedMetric(msgspec.Struct):
    """One metric of an environment: how many episodes reported it, and the sum of its values."""

    episodes: int = 0
    total: float = 0.0


class EpisodeCounts(msgspec.Struct):
    """Sums over the finished episodes of one task source, without greedy ones.

    Attributes:
        reward: final rewards.
        turns, tokens, sampled_tokens: turns; tokens, prompt and answers of tools included; tokens that the policy sampled. Those
            of an episode with several trajectories are of all of them together.
        empty_answers: episodes whose final answer has no text.
        truncated_calls: episodes that a limit cut off in the middle of a tool call.
        stopped: episodes by why they ended.
        metrics: what the environment reported, by name.
    """

    episodes: int = 0
    reward: float = 0.0
    turns: int = 0
    tokens: int = 0
    sampled_tokens: int = 0
    empty_answers: int = 0
    truncated_calls: int = 0
    stopped: dict[StopReason, int] = {}
    metrics: dict[str, ReportedMetric] = {}


class ToolCounts(msgspec.Struct):
    """The calls that reached one tool; ``errors`` raised, ``timeouts`` passed their deadline.

    ``seconds`` and ``latencies`` are of all calls.
    """

    calls: int = 0
    errors: int = 0
    timeouts: int = 0
    seconds: float = 0.0
    latencies: Latencies = msgspec.field(default_factory=Latencies)


class FinishedEpisodes(Counters, msgspec.Struct):
    """The finished episodes of one worker.

    Attributes:
        sources: by task source.
        tools: by tool. Greedy episodes count here and in what follows.
        calls, malformed_calls: all calls that environments report, and those that reached no tool.
        queue: how long episodes waited for a place in the engine after their ticket had been accepted.
        scoring: how long episodes waited for a reward model's score.
        episode: from the acceptance of the ticket until the episode was handed in.
    """

    sources: dict[str, EpisodeCounts] = {}
    tools: dict[str, ToolCounts] = {}
    calls: int = 0
    malformed_calls: int = 0
    queue: Latencies = msgspec.field(default_factory=Latencies)
    scoring: Latencies = msgspec.field(default_factory=Latencies)
    episode: Latencies = msgspec.field(default_factory=Latencies)

    def add(self, episode: Episode, source: str, seconds: float, *, empty_answer: bool, member: str = "") -> None:
        """Count one episode of a task of ``source``, which took ``seconds`` in all.

        Args:
            member: which environment of a mixture played it; its tools are counted as ``member.tool``.
        """
        self.episode.add(seconds)
        self.queue.add(episode.times.queued_s)
        if episode.times.scoring_s:
            self.scoring.add(episode.times.scoring_s)
        turns = list(episode.turns())
        for turn in turns:
            for call in turn.calls:
                self._add_call(call, member)
        if episode.sampling.temperature == 0:
            return
        counts = _entry(self.sources, source, EpisodeCounts)
        counts.episodes += 1
        counts.reward += episode.reward
        counts.turns += len(turns)
        counts.tokens += len(episode)
        counts.sampled_tokens += sum(turn.end - turn.start for turn in turns)
        counts.empty_answers += empty_answer
        last_turns = episode.final_trajectory().turns[-1:]
        counts.truncated_calls += any(call.outcome is CallOutcome.TRUNCATED for turn in last_turns for call in turn.calls)
        counts.stopped[episode.stop_reason] = counts.stopped.get(episode.stop_reason, 0) + 1
        for name, value in episode.metrics.items():
            reported = _entry(counts.metrics, name, ReportedMetric)
            reported.episodes += 1
            reported.total += value

    def _add_call(self, call: CallRecord, member: str) -> None:
        if call.outcome is CallOutcome.TRUNCATED:  # it was never made
            return
        self.calls += 1
        if call.outcome is CallOutcome.MALFORMED:  # its tool is whatever the model wrote
            self.malformed_calls += 1
            return
        tool = _entry(self.tools, f"{member}.{call.tool}" if member else call.tool, ToolCounts)
        tool.calls += 1
        tool.errors += call.outcome is CallOutcome.ERROR
        tool.timeouts += call.outcome is CallOutcome.TIMEOUT
        tool.seconds += call.seconds
        tool.latencies.add(call.seconds)


def _entry(table: dict[str, Entry], name: str, make: Callable[[], Entry]) -> Entry:
    """Return the entry of ``name``, or that of :data:`OTHER` if there are too many names."""
    entry = table.get(name)
    if entry is None:
        if len(table) >= MAX_NAMES:
            name = OTHER
        entry = table.setdefault(name, make())
    return entry
