from collections import Counter

import msgspec
import pytest
from played_episodes import in_batch, record

from asyncrl.core.batch import Batch
from asyncrl.core.measures.metrics import Reading
from asyncrl.core.measures.time_split import GeneratorTime, IdleShares, LearnerTime, TimeSplit
from asyncrl.core.plug_ins.error_counts import CountedError
from asyncrl.core.recipe.buffer import BufferConfig
from asyncrl.generators.worker import GeneratorStatistics
from asyncrl.learners.metrics import STALENESS_MAX, STALENESS_MEAN
from asyncrl.run.measures.summary import EvaluationEnds, PlayedEvaluation, Status
from asyncrl.run.measures.totals import SavedTotals, Totals, summarize

STEP = TimeSplit(
    seconds=2.0,
    learner=LearnerTime(training=1.0, writing=0.5),
    generators=GeneratorTime(sampling=1.5, nothing=0.5),
    trajectories=2,
    generated_tokens=100,
)


def statistics(tokens: int) -> GeneratorStatistics:
    return GeneratorStatistics(tokens, Counter({0: tokens}))


def batch(version: int) -> Batch:
    one = in_batch(record(group_id=version, sample_index=0, length=10, sampled=((version, 6),), reward=1.0), f"t{version}", "s")
    return Batch(version, 0, (one, one))


def train(totals: Totals, steps: range, tokens: int = 0) -> None:
    for step in steps:
        tokens += 100
        readings = [Reading(STALENESS_MEAN, 0.5 * step, 12), Reading(STALENESS_MAX, step)]
        totals.step(step, batch(step - 1), readings, STEP, [statistics(tokens)], None)


def test_a_resumed_run_counts_each_step_once():
    whole = Totals()
    train(whole, range(1, 9))

    first = Totals()
    train(first, range(1, 5))
    first.evaluation(PlayedEvaluation(0, 0, 0, 0.25))
    checkpoint = msgspec.json.encode(first.now())
    train(first, range(5, 7), 400)  # lost with the process

    second = Totals()
    second.resume(msgspec.json.decode(checkpoint, type=SavedTotals), published=5)
    train(second, range(5, 9))
    second.evaluation(PlayedEvaluation(6, 6, 8, 0.75))

    was, now = whole.now(), second.now()
    for name in ("steps", "time", "tokens_trained", "tokens_generated", "staleness_sum", "staleness_tokens"):
        assert getattr(now, name) == getattr(was, name), name
    assert (now.staleness_max, now.tokens_generated, now.time.generated_tokens) == (8, 800, 800)
    assert now.time.idle == IdleShares(pytest.approx(0.25), pytest.approx(0.25))
    assert [each.reward for each in now.evaluations] == [0.25, 0.75]
    assert second.versions_published == 5


def test_what_was_trained_had_been_generated_even_if_whoever_counted_was_killed():
    totals = Totals()
    totals.step(1, batch(0), [], STEP, [statistics(3)], None)  # most tokens of the batch come from the journal
    trained = totals.now().tokens_trained
    assert trained > 3
    assert summarize(totals, Status.COMPLETED, "", BufferConfig()).tokens.generated == trained
    assert summarize(totals, Status.COMPLETED, "", BufferConfig(max_reuse=2)).tokens.generated == -(-trained // 2)


def test_an_evaluation_that_was_left_out_is_counted_once_and_no_longer_if_another_stands_for_its_version():
    totals = Totals()
    totals.evaluation(PlayedEvaluation(0, 0, 0, 0.25))
    assert [totals.skip_evaluation(version) for version in (5, 10, 10, 15, 0)] == [1, 2, 2, 3, 3]
    totals.evaluation(PlayedEvaluation(10, 10, 12, 0.5))
    ends = summarize(totals, Status.COMPLETED, "", BufferConfig()).evaluation
    assert ends == EvaluationEnds.of(totals.now().evaluations, totals.now().skipped_evaluations)
    assert (ends.first, ends.last, ends.most_versions, ends.skipped) == (0.25, 0.5, 3, (5, 15))
    assert [(each.version, each.oldest, each.newest) for each in ends.played] == [(0, 0, 0), (10, 10, 12)]


def test_a_resumed_run_knows_which_evaluations_the_one_before_it_lost():
    totals = Totals()
    assert totals.lost_evaluations(5, 20) == [], "whoever knows of no evaluation knows of none that was lost"
    for version in (0, 5):
        totals.evaluation(PlayedEvaluation(version, version, version, 0.25))
    totals.skip_evaluation(10)
    second = Totals()
    second.resume(msgspec.json.decode(msgspec.json.encode(totals.now()), type=SavedTotals), published=21)
    assert second.lost_evaluations(5, 21) == [15, 20]
    assert second.lost_evaluations(5, 14) == []


def test_training_steps_that_are_done_again_from_the_journal_say_nothing_about_the_speed():
    first = Totals()
    train(first, range(1, 5))  # two episodes in two seconds
    second = Totals()
    second.resume(msgspec.json.decode(msgspec.json.encode(first.now()), type=SavedTotals), published=8)
    for step in range(5, 9):
        second.step(step, batch(step - 1), [], TimeSplit(seconds=0.1, trajectories=2), [statistics(0)], None)
    assert second.now().trajectories_per_s == pytest.approx(1.0)
    train(second, range(9, 11))
    now = second.now()
    assert now.trajectories_per_s == pytest.approx(1.0)
    assert (now.time.trajectories, now.repeated.trajectories, now.repeated.seconds) == (20, 8, pytest.approx(0.4))


def test_errors_of_the_environments_code_are_summed_over_generators_and_resumes():
    error = CountedError("reward", "/me/env.py", 41, "KeyError", "raised KeyError: 'a'", times=3, example="task t")
    of_tool = CountedError("look_up", "/me/env.py", 30, "OSError", "raised OSError: x", times=2, example="task u")
    generators = [
        msgspec.structs.replace(statistics(10), errors=(error,)),
        msgspec.structs.replace(statistics(10), errors=(of_tool, error)),
    ]
    first = Totals()
    first.step(1, batch(0), [], STEP, generators, None)
    second = Totals()
    second.resume(msgspec.json.decode(msgspec.json.encode(first.now()), type=SavedTotals), published=1)
    second.step(2, batch(1), [], STEP, generators[:1], None)
    summary = summarize(second, Status.COMPLETED, "", BufferConfig())
    assert [(each.method, each.times) for each in summary.errors] == [("reward", 9), ("look_up", 2)]
    earlier = msgspec.structs.replace(summary, steps=7)
    assert summarize(Totals(), Status.FAILED, "", BufferConfig()).going_on_from(earlier).errors == summary.errors


def test_a_warning_is_told_once_also_by_a_run_that_is_resumed():
    first = Totals()
    assert first.warn("no_variance", "all rewards are equal")
    assert not first.warn("no_variance", "all rewards are equal again")
    second = Totals()
    second.resume(msgspec.json.decode(msgspec.json.encode(first.now()), type=SavedTotals), published=1)
    assert not second.warn("no_variance", "all rewards are equal still")
    assert second.warn("empty_answers", "nothing is said")
    assert summarize(second, Status.COMPLETED, "", BufferConfig()).warnings == ("all rewards are equal", "nothing is said")
    assert first.now().warnings == {"no_variance": "all rewards are equal"}
