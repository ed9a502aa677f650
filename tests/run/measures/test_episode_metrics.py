"""What finished episodes report becomes metrics, by environment, task source and tool."""

import msgspec
import numpy as np
import pytest
from played_episodes import in_batch, played, record

from asyncrl.core.batch import Batch
from asyncrl.core.episode import Episode
from asyncrl.core.episode_records import EpisodeRecord, PayloadRef
from asyncrl.core.ids import GroupId, PolicyVersion, TaskId
from asyncrl.core.measures.counters import snapshot
from asyncrl.core.measures.metrics import combine
from asyncrl.core.messages import CallOutcome, CallRecord
from asyncrl.core.recipe.environment import ClassEnvironmentConfig
from asyncrl.core.trajectory import EpisodeTimes, Sampling, StopReason, Turn, VersionSpan
from asyncrl.generators.finished_episodes import MAX_NAMES, OTHER, FinishedEpisodes
from asyncrl.generators.worker import GeneratorStatistics
from asyncrl.run.measures.episode_metrics import EpisodeMetrics
from asyncrl.run.measures.step_readings import Moment

OK, ERROR, TIMEOUT, MALFORMED, _ = CallOutcome


def episode(reward=1.0, turns=2, stop=StopReason.ENVIRONMENT_DONE, temperature=1.0, calls=(), **metrics: float) -> Episode:
    """Turns of 3 tokens, each after 2 that were given."""
    spans = [VersionSpan(5 * i + at, 5 * i + to, version) for i in range(turns) for at, to, version in ((0, 2, -1), (2, 5, 0))]
    return played(
        task_id=TaskId("t"),
        group_id=GroupId(0),
        sample_index=0,
        attempt=0,
        token_ids=np.zeros(5 * turns, np.int32),
        logprobs=np.zeros(5 * turns, np.float32),
        loss_mask=np.zeros(5 * turns, bool),
        version_spans=tuple(spans),
        turns=tuple(Turn(5 * i + 2, 5 * i + 5, 0.0, calls if i == 0 else ()) for i in range(turns)),
        reward=reward,
        stop_reason=stop,
        sampling=Sampling(temperature, 1.0, 0),
        metrics=metrics,
        times=EpisodeTimes(queued_s=0.5, scoring_s=0.0),
    )


def counted(*episodes: Episode, source="a", into: FinishedEpisodes | None = None, empty=False) -> FinishedEpisodes:
    finished = into or FinishedEpisodes()
    for one in episodes:
        finished.add(one, source, 8.0, empty_answer=empty)
    return finished


def batch(*rewards: tuple[str, float]) -> Batch:
    sampled = ((PolicyVersion(0), 6),)
    episodes = tuple(
        in_batch(record(group_id=GroupId(0), sample_index=i, length=10, sampled=sampled, reward=reward), source=source)
        for i, (source, reward) in enumerate(rewards)
    )
    return Batch(PolicyVersion(0), PolicyVersion(0), episodes)


def found(finished: FinishedEpisodes, *rewards: tuple[str, float], shares=None) -> dict[str, float]:
    return combine(
        EpisodeMetrics(ClassEnvironmentConfig(name="calculator")).readings(
            finished, batch(*(rewards or [("a", 1.0)])), shares or {"a": 1.0}
        )
    )


def test_a_metric_is_its_mean_over_finished_episodes():
    cut = episode(reward=0.0, turns=1, stop=StopReason.TURN_LENGTH)
    values = found(counted(episode(tool_calls=3.0, correct=1.0), episode(tool_calls=1.0), cut, cut))
    assert (values["environment/tool_calls"], values["environment/correct"]) == (1.0, 0.25)
    assert (values["finished/reward_mean"], values["finished/turns"]) == (0.5, 1.5)
    assert (values["finished/tokens"], values["finished/sampled_tokens"]) == (7.5, 4.5)
    assert (values["finished/stopped_turn_length"], values["finished/stopped_environment_done"]) == (0.5, 0.5)
    assert "finished/stopped_tool_error" not in values, "what never happened has no curve"
    assert not any(name.startswith("source/") for name in values), "one source says nothing that all episodes do not say"


def test_parts_of_the_reward_are_means_over_the_batch():
    some = [
        msgspec.structs.replace(one, reward_parts=parts)
        for one, parts in zip(
            batch(("a", 1.0), ("a", 0.0), ("b", 0.5)).episodes, ({"right": 1.0, "mean": 0.2}, {}, {"right": 0.5}), strict=True
        )
    ]
    values = combine(EpisodeMetrics(ClassEnvironmentConfig(name="calculator")).reward_parts(some))
    assert values == pytest.approx({"reward/right": 0.5, "reward/part_mean": 0.2 / 3})  # reward/mean is that of whole rewards


def test_a_record_sums_the_parts_of_the_turns_rewards():
    whole = episode(turns=3)
    (stream,) = whole.trajectories
    turns = tuple(
        msgspec.structs.replace(turn, rewards=parts)
        for turn, parts in zip(stream.turns, ({"right": 1.0, "brief": -0.25}, {}, {"right": 0.5}), strict=True)
    )
    stream = msgspec.structs.replace(stream, turns=turns, loss_mask=stream.versions() >= 0)
    made = EpisodeRecord.of(msgspec.structs.replace(whole, trajectories=(stream,)), PayloadRef(0, "segment", 0, 1, 0))
    assert made.reward_parts == {"right": 1.5, "brief": -0.25}


def test_greedy_episodes_count_for_latencies_only():
    values = found(counted(episode(reward=0.25), episode(temperature=0.0, calls=(CallRecord("look", 2.0, OK),))))
    assert values["finished/reward_mean"] == 0.25
    assert values["tool/look/calls"] == 1


def test_calls_are_told_apart_by_tool_and_by_what_became_of_them():
    calls = (CallRecord("look", 1.0, OK), CallRecord("look", 4.0, TIMEOUT), CallRecord("look", 1.0, ERROR))
    wrong = (CallRecord("lok", 0.0, MALFORMED), CallRecord("", 0.0, MALFORMED), CallRecord("add", 0.001, OK))
    values = found(counted(episode(calls=calls), episode(calls=wrong), episode(calls=(CallRecord("look", 1.0, OK),))))
    assert (values["tool/look/calls"], values["tool/look/error_share"], values["tool/look/timeout_share"]) == (4, 0.25, 0.25)
    assert values["tool/look/seconds_p50"] == pytest.approx(1.0, rel=0.091)
    assert values["tool/look/seconds_p99"] == pytest.approx(4.0, rel=0.091)
    assert values["tool/add/seconds_p50"] == pytest.approx(0.001, rel=0.091)
    assert values["finished/malformed_calls"] == pytest.approx(2 / 7)
    assert not any("lok" in name for name in values), "a tool that the policy made up has no curve"


def test_latencies_of_episodes():
    values = found(counted(episode()))
    assert values["latency/episode_p50"] == pytest.approx(8.0, rel=0.091)
    assert values["latency/queue_p99"] == pytest.approx(0.5, rel=0.091)
    assert "latency/scoring_p50" not in values


def test_task_sources_are_told_apart_where_there_are_several():
    finished = counted(episode(reward=1.0, correct=1.0), episode(reward=0.5), source="easy.jsonl")
    counted(episode(reward=0.0, turns=3), source="dir/hard.jsonl", into=finished, empty=True)
    shares = {"easy.jsonl": 0.75, "dir/hard.jsonl": 0.25}
    values = found(finished, ("easy.jsonl", 1.0), ("easy.jsonl", 0.0), ("dir/hard.jsonl", 0.0), shares=shares)
    assert values["source/easy.jsonl/reward_mean"] == 0.75
    assert values["source/easy.jsonl/trained_reward_mean"] == 0.5, "before and after filters"
    assert values["source/easy.jsonl/environment/correct"] == 0.5
    assert (values["source/easy.jsonl/draw_share"], values["source/easy.jsonl/trained_share"]) == (0.75, pytest.approx(2 / 3))
    (hard,) = {name.split("/")[1] for name in values if "hard" in name}
    assert hard.startswith("dir_hard.jsonl-")
    assert (values[f"source/{hard}/turns"], values[f"source/{hard}/empty_answers"]) == (3.0, 1.0)
    assert values["finished/reward_mean"] == 0.5


def test_only_what_is_new_counts_and_generators_add_up():
    finished = counted(episode(reward=0.0, calls=(CallRecord("look", 1.0, OK),)))
    before = [GeneratorStatistics(finished=snapshot(finished)), GeneratorStatistics()]
    counted(episode(reward=1.0), into=finished)
    after = [GeneratorStatistics(finished=finished), GeneratorStatistics(finished=counted(episode(reward=0.5)))]
    values = found(Moment(1.0, after, None).finished - Moment(0.0, before, None).finished)
    assert values["finished/reward_mean"] == 0.75
    assert "tool/look/calls" not in values
    assert "finished/malformed_calls" not in values


def test_what_a_dead_generator_counted_is_kept():
    dead = GeneratorStatistics(finished=counted(episode(reward=1.0)))
    successor = GeneratorStatistics(finished=counted(episode(reward=0.0), episode(reward=0.0, correct=1.0)))
    whole = dead + successor
    assert found(Moment(1.0, [whole], None).finished - Moment(0.0, [dead], None).finished)["finished/reward_mean"] == 0.0
    assert whole.finished.sources["a"].episodes == 3
    assert dead.finished.sources["a"].episodes == 1


def test_too_many_names_are_folded_into_one_and_the_user_is_told_once():
    metrics = EpisodeMetrics(ClassEnvironmentConfig(name="calculator"))
    for _ in range(2):
        finished = counted(*(episode(accuracy=0.5, **{f"task_{i}": 1.0}) for i in range(MAX_NAMES + 200)))
        assert len(finished.sources["a"].metrics) == MAX_NAMES + 1
        values = combine(metrics.readings(finished, batch(("a", 1.0)), {"a": 1.0}))
        assert len([name for name in values if name.startswith("environment/")]) == 51
        assert values["environment/accuracy"] == 0.5
        assert values[f"environment/{OTHER}"] == pytest.approx((MAX_NAMES + 200 - 49) / (MAX_NAMES + 200))
    (notice,) = metrics.notices()
    assert "more than 50 metrics of the environment" in notice
    assert not [*metrics.notices()]
