"""The buffer: tickets, finished and failed episodes, batches and their redo, payload, snapshots."""

import msgspec
import pytest
from made_buffers import restored
from samples import finish, make_buffer, make_recipe, make_tasks, sample

from asyncrl.buffers.replay_buffer import NOTHING_TRAINED
from asyncrl.core.episode_records import TrajectoryRecord
from asyncrl.core.errors import BudgetExceeded, FailureKind, LedgerError
from asyncrl.core.measures.buffer_statistics import PROMPT_TOO_LONG, GroupState
from asyncrl.core.recipe.buffer import ZeroVarianceFilterConfig
from asyncrl.core.trajectory import StopReason

INFRASTRUCTURE, DATA = FailureKind.INFRASTRUCTURE, FailureKind.DATA


def step(buffer, version, groups):
    """Take, train, forget and publish."""
    batch = buffer.batches.take(version, groups)
    buffer.batches.trained(version)
    buffer.batches.checkpointed(version + 1)
    buffer.advance(version + 1)
    return batch


def groups_of(batch):
    return list(dict.fromkeys(row.group_id for row in batch.rows))


# Pace


def test_pace_counts_running_committed_and_the_batch_being_trained():
    buffer = make_buffer(pipeline_depth=1)
    tickets = buffer.lease("w", 100, 0.0)
    assert [t.group_id for t in tickets] == [0, 1, 2, 3]
    finish(buffer, tickets[0])
    finish(buffer, tickets[1])
    assert buffer.room() == 0
    buffer.batches.take(0, 2)
    assert buffer.room() == 0, "a batch in training is outstanding until the clock has moved past it"
    buffer.batches.trained(0)
    assert buffer.room() == 0
    buffer.advance(1)
    assert buffer.room() == 2


def test_no_more_groups_than_the_run_can_train():
    buffer = make_buffer(steps=1, pipeline_depth=3)
    tickets = buffer.lease("w", 100, 0.0)
    assert len(tickets) == 2
    for ticket in tickets:
        finish(buffer, ticket)
    step(buffer, 0, 2)
    assert buffer.room() == 0


def test_reuse_needs_fewer_groups_for_the_rest_of_the_run():
    buffer = make_buffer(steps=2, pipeline_depth=3, max_reuse=2)
    tickets = buffer.lease("w", 100, 0.0)
    assert len(tickets) == 2
    for ticket in tickets:
        finish(buffer, ticket)
    assert groups_of(step(buffer, 0, 2)) == groups_of(step(buffer, 1, 2)) == [0, 1]
    assert buffer.statistics().ledger.trained == 2


def test_reuse_never_starves_a_batch_of_different_groups():
    """A batch of two still needs another group when one group is left that is good for both remaining trainings."""
    buffer = make_buffer(steps=2, pipeline_depth=2, max_staleness=5, max_reuse=3)
    tickets = buffer.lease("w", 100, 0.0)
    assert len(tickets) == 2, "good for six trainings, of which four are wanted"
    for ticket in tickets:
        finish(buffer, ticket)
    step(buffer, 0, 2)
    assert buffer.room() == 0
    buffer.batches.drop_lost_payload(list(buffer.groups.live_payload())[:2])
    assert buffer.statistics().ledger.trained == 1
    assert buffer.room() == 1


def test_a_full_memory_stops_tickets_but_never_the_next_batch():
    buffer = make_buffer(pipeline_depth=3, groups_per_step=2, capacity_mb=1)
    first, second = buffer.lease("w", 2, 0.0)
    finish(buffer, first, size=500_000)
    assert buffer.statistics().payload_bytes == 1_000_000
    assert buffer.room() == 0, "the second group is running, and makes the batch whole"
    buffer.fail(second.group_id, 0, INFRASTRUCTURE, "x")
    buffer.fail(second.group_id, 1, INFRASTRUCTURE, "x")
    assert buffer.room() == 1
    (again,) = buffer.lease("w", 10, 0.0)
    finish(buffer, again)
    step(buffer, 0, 2)
    assert buffer.statistics().payload_bytes == 0
    assert buffer.room() == 8


# Batches


def test_oldest_first_and_groups_whole():
    buffer = make_buffer(pipeline_depth=3)
    for ticket in reversed(buffer.lease("w", 4, 0.0)):
        finish(buffer, ticket)
    batch = buffer.batches.take(0, 2)
    assert [(r.group_id, r.sample_index) for r in batch.episodes] == [(0, 0), (0, 1), (1, 0), (1, 1)]


def test_a_record_says_all_of_its_row():
    buffer = make_buffer(groups_per_step=1, max_staleness=2)
    (ticket,) = buffer.lease("w", 1, 0.0)
    for version in (1, 2, 3):
        buffer.advance(version)
    rows = [sample(ticket, i, (0, 1, 4), reward=float(i), tokens=5) for i in range(2)]
    buffer.commit(rows, 0.0)
    batch = buffer.batches.take(3, 1)
    assert (batch.version, batch.oldest_version) == (3, 1)
    record = batch.episodes[1]
    assert (record.task_id, record.length, record.trainable_tokens(1), record.reward) == (ticket.task.id, 18, 10, 1.0)
    assert (batch.rows[1].loss_tokens, batch.rows[1].reward) == (10, 1.0)
    assert (record.committed_version, record.weight, record.payload) == (4, 1.0, rows[1].payload)
    assert record.trajectories[0].turn_rewards == (1.0,)
    assert record.rewards == (1.0, 0.5)
    assert buffer.statistics().stale_tokens.masked == 10


def test_a_greedy_episode_is_in_the_batch_and_none_of_its_tokens_in_the_loss():
    buffer = make_buffer(groups_per_step=1, max_staleness=1)
    (ticket,) = buffer.lease("w", 1, 0.0)
    for version in (1, 2):
        buffer.advance(version)
    greedy, sampled = (sample(ticket, index, (0, 1, 2), reward=1.0 - index, tokens=5) for index in range(2))
    buffer.commit([msgspec.structs.replace(greedy, greedy=True), sampled], 0.0)
    batch = buffer.batches.take(2, 1)
    assert [(each.sample_index, each.greedy, each.reward, each.trainable_tokens(1)) for each in batch.episodes] == [
        (0, True, 1.0, 0),
        (1, False, 0.0, 10),
    ]
    assert [row.name for row in batch.rows] == [(0, 1, 0)]
    assert batch.trained == batch.episodes[1:]
    assert buffer.statistics().stale_tokens.masked == 5


def test_a_group_of_which_only_the_greedy_episode_is_fresh_is_let_go():
    buffer = make_buffer(groups_per_step=1, max_staleness=1)
    (ticket,) = buffer.lease("w", 1, 0.0)
    greedy, sampled = sample(ticket, 0, (5,)), sample(ticket, 1, (0,))
    buffer.commit([sampled], 0.0)
    for version in range(1, 6):
        buffer.advance(version)
    buffer.commit([msgspec.structs.replace(greedy, greedy=True)], 0.0)
    assert buffer.batches.has_stale(5)
    assert not buffer.batches.takeable(5, 1)
    buffer.batches.expire(5)
    assert buffer.statistics().stale_tokens.dropped == 2
    assert buffer.statistics().ledger.expired == 1


def test_a_greedy_episode_is_one_of_its_group_to_a_filter():
    buffer = make_buffer(groups_per_step=1, filters=(ZeroVarianceFilterConfig(),))
    for (rewards, filtered), ticket in zip([((1.0, 0.0), 0), ((1.0, 1.0), 1)], buffer.lease("w", 2, 0.0), strict=True):
        greedy, sampled = (sample(ticket, index, reward=reward) for index, reward in enumerate(rewards))
        buffer.commit([msgspec.structs.replace(greedy, greedy=True), sampled], 0.0)
        assert buffer.statistics().ledger.filtered == filtered


def test_too_few_groups_are_not_a_batch():
    buffer = make_buffer(groups_per_step=1)
    (ticket,) = buffer.lease("w", 1, 0.0)
    buffer.commit([sample(ticket, 0)], 0.0)
    assert not buffer.batches.takeable(0, 1)
    with pytest.raises(LedgerError, match="0 groups are ready; a batch of 1 for version 0 must wait"):
        buffer.batches.take(0, 1)
    buffer.commit([sample(ticket, 1)], 0.0)
    assert buffer.batches.takeable(0, 1)
    assert len(buffer.batches.take(0, 1).episodes) == 2


def test_a_batch_is_the_same_until_a_newer_checkpoint():
    buffer = make_buffer(groups_per_step=1, pipeline_depth=1, max_staleness=1)
    for version in (0, 1):
        (ticket, *_) = buffer.lease("w", 1, 0.0)
        finish(buffer, ticket, versions=(version,))
        batch = buffer.batches.take(version, 1)
        buffer.batches.trained(version)
        before = buffer.snapshot()
        assert buffer.batches.takeable(version, 1)
        assert buffer.batches.take(version, 1) == batch
        buffer.batches.trained(version)
        assert buffer.snapshot() == before
        buffer.advance(version + 1)
        buffer.advance(version)
    assert buffer.drain_freed() == []
    buffer.batches.checkpointed(1)
    assert len(buffer.drain_freed()) == 2
    with pytest.raises(LedgerError, match=r"version 0 is no longer kept.*checkpoint of version 1; begin from that one"):
        buffer.batches.take(0, 1)
    buffer.batches.trained(0)
    buffer.batches.checkpointed(0)
    assert [row.payload for row in buffer.batches.take(1, 1).episodes] == list(buffer.groups.live_payload())


def test_a_checkpoint_cannot_be_newer_than_what_was_trained():
    buffer = make_buffer(groups_per_step=1)
    finish(buffer, buffer.lease("w", 1, 0.0)[0])
    buffer.batches.take(0, 1)
    with pytest.raises(LedgerError, match="batch of version 0 is not trained"):
        buffer.batches.checkpointed(1)
    with pytest.raises(LedgerError, match="never handed out"):
        buffer.batches.trained(1)


def test_the_published_version_grows_by_one():
    with pytest.raises(LedgerError, match="grows by one"):
        make_buffer().advance(2)


# Staleness


@pytest.mark.parametrize(("on_stale", "expired"), [("mask", 1), ("drop", 2)])
def test_groups_over_the_bound_expire_and_their_tasks_come_back_first(on_stale, expired):
    buffer = make_buffer(groups_per_step=3, max_staleness=1, pipeline_depth=1, on_stale=on_stale)
    wholly_old, partly_old, fresh = buffer.lease("w", 3, 0.0)
    finish(buffer, wholly_old, versions=(0, 1))
    finish(buffer, partly_old, versions=(1, 2))
    finish(buffer, fresh, versions=(2, 3))
    assert buffer.batches.has_stale(3)
    assert not buffer.batches.has_stale(1)
    buffer.batches.expire(3)
    assert not buffer.batches.has_stale(3)
    statistics = buffer.statistics()
    assert (statistics.ledger.expired, statistics.ledger.tasks.waiting) == (expired, expired)
    assert statistics.stale_tokens.dropped == 8 * expired
    again = buffer.lease("w", expired, 0.0)
    assert [t.task.id for t in again] == [wholly_old.task.id, partly_old.task.id][:expired]
    assert [t.group_id for t in again] == [3, 4][:expired]


def test_under_drop_running_groups_beyond_hope_expire_and_their_worker_hears_of_it():
    buffer = make_buffer(groups_per_step=2, max_staleness=1, pipeline_depth=1, on_stale="drop")
    one, two = buffer.lease("w", 2, 0.0)
    buffer.commit([sample(one, 0)], 0.0)
    buffer.advance(1)
    assert buffer.unwanted("w", [0, 1]) == []
    buffer.advance(2)
    assert buffer.unwanted("w", [0, 1]) == [0, 1]
    assert buffer.statistics().ledger.reasons == {"expired: over the staleness bound before it was finished": 2}
    late = sample(one, 1)
    buffer.commit([late], 0.0)
    assert late.payload in buffer.drain_freed()
    assert buffer.statistics().late_samples == 1
    buffer.fail(two.group_id, 0, DATA, "too late as well")
    assert buffer.statistics().failures[DATA] == 0


def test_under_mask_no_running_group_is_beyond_hope():
    buffer = make_buffer(max_staleness=0, pipeline_depth=0)
    (ticket, *_) = buffer.lease("w", 1, 0.0)
    for version in (1, 2, 3):
        buffer.advance(version)
    assert buffer.unwanted("w", [ticket.group_id]) == []


def test_under_wait_a_batch_waits_for_the_group_that_would_cross_the_bound():
    buffer = make_buffer(groups_per_step=2, max_staleness=1, pipeline_depth=1, on_stale="wait")
    tickets = buffer.lease("w", 4, 0.0)
    for ticket in tickets[1:]:
        finish(buffer, ticket)
    assert groups_of(step(buffer, 0, 2)) == [1, 2], "any two may come first: the other two still fit into the last batch"
    for ticket in buffer.lease("v", 4, 0.0):
        finish(buffer, ticket, versions=(1,))
    assert len(buffer._index.ready) == 3
    assert not buffer.batches.takeable(1, 2), "group 0 was born at version 0 and must be trained at version 1, at most"
    assert buffer.groups.blockers() == [(0, tickets[0].task.id, "w")]
    finish(buffer, tickets[0], versions=(0, 1))
    batch = step(buffer, 1, 2)
    assert sorted(groups_of(batch)) == [0, 3]
    assert all(row.loss_tokens == sum(t for _, t in ((0, 2), (1, 2))) for row in batch.rows if row.group_id == 0)
    assert buffer.statistics().stale_tokens.masked == buffer.statistics().stale_tokens.dropped == 0


def test_what_a_group_holds_when_it_is_issued_again_still_decides_about_its_deadline():
    buffer = make_buffer(groups_per_step=1, max_staleness=1, pipeline_depth=1, on_stale="wait")
    first, second = buffer.lease("w", 2, 0.0)
    finish(buffer, first)
    buffer.commit([sample(second, 0)], 0.0)
    buffer.fail(second.group_id, 1, INFRASTRUCTURE, "engine died")
    step(buffer, 0, 1)
    again, new = buffer.lease("w", 2, 0.0)
    assert (again.group_id, again.samples, again.version) == (second.group_id, (1,), 1)
    finish(buffer, new, versions=(1,))
    assert not buffer.batches.takeable(1, 1), "one of the older group's episodes was sampled by version 0"
    finish(buffer, again, versions=(1,))
    assert groups_of(buffer.batches.take(1, 1)) == [second.group_id]


def test_a_group_that_was_trained_is_not_generated_again_when_it_gets_too_old_for_reuse():
    buffer = make_buffer(groups_per_step=1, max_staleness=1, pipeline_depth=1, max_reuse=2)
    (first,) = buffer.lease("w", 1, 0.0)
    finish(buffer, first)
    step(buffer, 0, 1)
    assert buffer.statistics().ledger.committed == 1
    buffer.batches.expire(2)
    counts = buffer.statistics().ledger
    assert (counts.trained, counts.expired, counts.tasks.waiting) == (1, 0, 0)


# Failures


def test_a_failed_group_comes_first_again_with_what_it_has():
    buffer = make_buffer(group_size=3)
    first, _ = buffer.lease("w", 2, 0.0)
    buffer.commit([sample(first, 1)], 0.0)
    buffer.fail(first.group_id, 0, INFRASTRUCTURE, "engine died")
    assert buffer.statistics().ledger.running == 2, "one of its episodes is still on the way"
    buffer.fail(first.group_id, 2, INFRASTRUCTURE, "engine died")
    counts = buffer.statistics().ledger
    assert (counts.failed, counts.trajectories.failed, counts.trajectories.committed) == (1, 2, 1)
    assert counts.reasons == {f"failed: {INFRASTRUCTURE.description}": 1}
    assert counts.examples == {f"failed: {INFRASTRUCTURE.description}": f"task {first.task.id}: engine died"}
    again, *_ = buffer.lease("v", 2, 0.0)
    assert (again.group_id, again.samples, again.task, again.attempt) == (first.group_id, (0, 2), first.task, 0)
    finish(buffer, again)
    assert buffer.statistics().ledger.committed == 1


def test_a_partial_group_is_trained_if_enough_finished():
    buffer = make_buffer(groups_per_step=1, group_size=3, min_group=2)
    (ticket, *_) = buffer.lease("w", 1, 0.0)
    buffer.commit([sample(ticket, 0), sample(ticket, 2)], 0.0)
    assert not buffer.batches.takeable(0, 1), "the third may still come"
    buffer.fail(ticket.group_id, 1, DATA, "KeyError")
    assert [row.sample_index for row in buffer.batches.take(0, 1).episodes] == [0, 2]
    counts = buffer.statistics().ledger.trajectories
    assert (counts.taken, counts.missing) == (2, 1)


def test_a_task_whose_prompt_is_too_long_is_left_out_by_name_and_is_no_failure():
    buffer = make_buffer(groups_per_step=1, max_failures=1)
    first, *_ = buffer.lease("w", 1, 0.0)
    rows = sample(first, 0)
    buffer.commit([rows], 0.0)
    buffer.leave_out(first.group_id, f"task {first.task.id}: its prompt has 600 tokens")
    statistics = buffer.statistics()
    assert (statistics.too_long_tasks, statistics.too_long, statistics.filtered_tasks) == ((first.task.id,), {"source": 1}, ())
    assert sum(statistics.failures.values()) == 0
    assert (statistics.ledger.filtered, statistics.ledger.left_out_by_filters, statistics.filtered_in_a_row) == (1, 0, 0)
    assert statistics.ledger.examples == {f"filtered: {PROMPT_TOO_LONG}": f"task {first.task.id}: its prompt has 600 tokens"}
    assert buffer.drain_freed() == [rows.payload]
    assert buffer.unwanted("w", [first.group_id]) == [first.group_id]
    with pytest.raises(LedgerError, match="group 99 was never issued"):
        buffer.leave_out(99, "")


def test_a_task_that_breaks_its_environment_is_filtered_and_named():
    buffer = make_buffer(groups_per_step=1, max_attempts=2)
    first, *_ = buffer.lease("w", 1, 0.0)
    rows = sample(first, 0)
    buffer.commit([rows], 0.0)
    buffer.fail(first.group_id, 1, DATA, "KeyError")
    second, *_ = buffer.lease("w", 1, 0.0)
    assert (second.task, second.attempt, second.samples) == (first.task, 1, (1,))
    buffer.fail(second.group_id, 1, DATA, "KeyError")
    statistics = buffer.statistics()
    assert statistics.filtered_tasks == (first.task.id,)
    assert (statistics.ledger.filtered, statistics.ledger.tasks.filtered) == (1, 1)
    assert buffer.drain_freed() == [rows.payload]
    third, *_ = buffer.lease("w", 1, 0.0)
    assert third.task != first.task


def test_too_many_failures_stop_the_run_with_the_reason():
    buffer = make_buffer(groups_per_step=1, max_failures=1, pipeline_depth=1)
    one, two = buffer.lease("w", 2, 0.0)
    buffer.fail(one.group_id, 0, INFRASTRUCTURE, "engine died")
    buffer.fail(one.group_id, 1, INFRASTRUCTURE, "engine died")  # of the same group: one failure
    with pytest.raises(
        BudgetExceeded, match=r"2 failures \(lost engine, host or service\), more than buffer.max_failures=1.*engine died"
    ):
        buffer.fail(two.group_id, 0, INFRASTRUCTURE, "engine died")
    buffer.restart()
    assert buffer.statistics().failures == {INFRASTRUCTURE: 0, DATA: 0}


def test_all_failures_by_one_incident_count_as_one():
    buffer = make_buffer(groups_per_step=1, max_failures=1, pipeline_depth=2)
    one, two, three = buffer.lease("w", 3, 0.0)
    buffer.fail(one.group_id, 0, INFRASTRUCTURE, "the server is gone", "connection a")
    buffer.fail(two.group_id, 0, INFRASTRUCTURE, "the server is gone", "connection a")
    assert buffer.statistics().failures[INFRASTRUCTURE] == 1
    with pytest.raises(BudgetExceeded, match="the server is gone again"):
        buffer.fail(three.group_id, 1, INFRASTRUCTURE, "the server is gone again", "connection b")


def test_an_incident_that_takes_what_was_leased_later_counts_again():
    """A server that calls each of its connections the same must not take episodes for ever."""
    buffer = make_buffer(groups_per_step=1, max_failures=3, pipeline_depth=2)
    for count in (1, 2, 3):
        for ticket in buffer.lease("w", 3, 0.0):
            for index in ticket.samples:
                buffer.fail(ticket.group_id, index, INFRASTRUCTURE, "the server is gone", "the only name it knows")
        assert buffer.statistics().failures[INFRASTRUCTURE] == count
    with pytest.raises(BudgetExceeded, match="4 failures"):
        buffer.fail(buffer.lease("w", 1, 0.0)[0].group_id, 0, INFRASTRUCTURE, "the server is gone", "the only name it knows")


def test_what_a_lost_worker_held_is_issued_again():
    buffer = make_buffer(max_failures=1)
    one, _ = buffer.lease("w", 2, 0.0)
    buffer.lease("v", 1, 0.0)
    buffer.commit([sample(one, 0)], 0.0)
    buffer.lost("w")
    buffer.lost("w")
    assert buffer.statistics().failures[INFRASTRUCTURE] == 1, "one worker is one failure"
    assert buffer.unwanted("w", [0, 1]) == [0, 1]
    assert buffer.unwanted("v", [2]) == []
    again = buffer.lease("v", 2, 0.0)
    assert [(t.group_id, t.samples) for t in again] == [(0, (1,)), (1, (0, 1))]
    assert buffer.unwanted("w", [0]) == [0], "another worker has it now"
    assert buffer.unwanted("v", [0, 1, 2]) == []


def test_an_episode_is_taken_in_once():
    buffer = make_buffer(groups_per_step=1)
    (ticket, *_) = buffer.lease("w", 1, 0.0)
    first, second = sample(ticket, 0), sample(ticket, 0)
    buffer.commit([first, first, second], 0.0)
    assert buffer.drain_freed() == [second.payload], "the very same sample again must not free what is held"
    assert list(buffer.groups.live_payload()) == [first.payload]
    assert buffer.statistics().late_samples == 2


def test_a_worker_that_was_given_up_may_still_hand_in_what_is_not_too_old():
    buffer = make_buffer()
    (ticket,) = buffer.lease("w", 1, 0.0)
    buffer.lost("w")
    buffer.advance(1)
    (again,) = buffer.lease("v", 1, 0.0)
    buffer.commit([sample(ticket, 0, versions=(0,)), sample(ticket, 1, versions=(1,))], 0.0)
    counts = buffer.statistics().ledger.trajectories
    assert (counts.running, counts.committed) == (1, 1)
    assert again.samples == (0, 1)


def test_a_worker_behind_the_clock_is_named():
    buffer = make_buffer()
    buffer.advance(1)
    (ticket,) = buffer.lease("w", 1, 0.0)
    with pytest.raises(LedgerError, match="tokens of version 0, but was leased at 1; w must not lease"):
        buffer.commit([sample(ticket, 0, versions=(0,))], 0.0)


@pytest.mark.parametrize(("group_id", "index"), [(5, 0), (-1, 0), (0, 7)])
def test_an_episode_of_no_ticket_is_refused(group_id, index):
    buffer = make_buffer()
    (ticket,) = buffer.lease("w", 1, 0.0)
    wrong = msgspec.structs.replace(sample(ticket, 0), group_id=group_id, sample_index=index)
    with pytest.raises(LedgerError, match=f"sample {index} of group {group_id}"):
        buffer.commit([wrong], 0.0)


def test_an_episode_without_sampled_tokens_is_a_failed_attempt():
    buffer = make_buffer(groups_per_step=1)
    (ticket, *_) = buffer.lease("w", 1, 0.0)
    finish(buffer, ticket, versions=())
    assert buffer.statistics().ledger.reasons == {"failed: broken environment or score": 1}
    assert len(buffer.drain_freed()) == 2


def test_filtered_groups_are_counted_and_replaced():
    buffer = make_buffer(groups_per_step=1, pipeline_depth=0, filters=(ZeroVarianceFilterConfig(),))
    (ticket,) = buffer.lease("w", 9, 0.0)
    finish(buffer, ticket, reward=1.0)
    counts = buffer.statistics().ledger
    assert (counts.filtered, counts.reasons) == (1, {"filtered: zero variance": 1})
    (another,) = buffer.lease("w", 9, 0.0)
    assert another.task != ticket.task
    buffer.commit([sample(another, 0, reward=0.0), sample(another, 1, reward=1.0)], 0.0)
    assert buffer.batches.takeable(0, 1)


# Payload and recovery


def test_payload_is_freed_when_nobody_needs_it_any_more():
    buffer = make_buffer(groups_per_step=1)
    (ticket, *_) = buffer.lease("w", 1, 0.0)
    finish(buffer, ticket)
    refs = list(buffer.groups.live_payload())
    buffer.batches.take(0, 1)
    buffer.batches.trained(0)
    statistics = buffer.statistics()
    assert (statistics.payload_bytes, statistics.kept_batches, statistics.kept_bytes) == (0, 1, 200)
    assert list(buffer.groups.live_payload()) == refs
    buffer.batches.checkpointed(1)
    assert buffer.drain_freed() == refs
    assert buffer.drain_freed() == []
    assert buffer.statistics().kept_bytes == 0


def test_lost_payload_is_generated_again_or_left_out_of_the_redo():
    buffer = make_buffer(groups_per_step=1, pipeline_depth=3, max_staleness=3)
    tickets = buffer.lease("w", 4, 0.0)
    for ticket in tickets[:3]:
        finish(buffer, ticket)
    buffer.commit([sample(tickets[3], 0)], 0.0)
    step_one = buffer.batches.take(0, 1)
    buffer.batches.trained(0)
    buffer.advance(1)
    taken = buffer.batches.take(1, 1)
    ready, running = (buffer._state.groups[i] for i in (2, 3))
    lost = [
        step_one.episodes[0].payload,
        *(row.payload for row in taken.episodes),
        next(ready.payload()),
        next(running.payload()),
    ]
    assert buffer.batches.drop_lost_payload(lost) == 5
    assert buffer.batches.drop_lost_payload(lost) == 0
    assert [row.sample_index for row in buffer.batches.take(0, 1).episodes] == [1]
    assert not buffer.batches.takeable(1, 1), "nothing of the batch that was being trained is left"
    counts = buffer.statistics().ledger
    assert (counts.trained, counts.expired, counts.failed, counts.running) == (1, 1, 1, 1)
    assert sum(row.payload.size for row in step_one.episodes) // 2 == buffer.statistics().kept_bytes
    (again, *_) = buffer.lease("v", 1, 0.0)
    assert (again.group_id, again.samples) == (2, (0,))
    finish(buffer, again, versions=(1,))
    assert groups_of(buffer.batches.take(1, 1)) == [2]
    assert buffer.lease("v", 1, 0.0)[0].task == tickets[1].task


def test_a_trained_batch_without_any_payload_cannot_be_done_again():
    buffer = make_buffer(groups_per_step=1)
    finish(buffer, buffer.lease("w", 1, 0.0)[0])
    batch = buffer.batches.take(0, 1)
    buffer.batches.trained(0)
    with pytest.raises(LedgerError, match="batch of version 0, which must be trained again, were destroyed"):
        buffer.batches.drop_lost_payload([row.payload for row in batch.episodes])


def test_other_tasks_than_those_of_the_snapshot_are_refused():
    data = make_buffer().snapshot()
    with pytest.raises(LedgerError, match="tasks or the seed"):
        restored(make_recipe(), make_tasks(tasks=49), data)


def test_statistics_tell_what_is_held_and_since_when():
    buffer = make_buffer(pipeline_depth=2)
    one, _ = buffer.lease("w", 2, 10.0)
    buffer.advance(1)
    buffer.lease("w", 1, 20.0)
    finish(buffer, one, versions=(0, 1), now=30.0, tokens=500, prompt=24)
    held = [(h.version, h.state, h.groups, h.since) for h in buffer.statistics().held]
    assert held == [
        (0, GroupState.RUNNING, 1, 10.0),
        (0, GroupState.COMMITTED, 1, 30.0),
        (1, GroupState.RUNNING, 1, 20.0),
    ]
    statistics = buffer.statistics()
    assert {b: n for b, n in enumerate(statistics.lengths_issued) if n} == {11: 2}
    assert buffer.tasks.drawn == {"source": 3}


@pytest.mark.parametrize(
    ("stop_reason", "counted"),
    [(StopReason.EPISODE_TIMEOUT, FailureKind.INFRASTRUCTURE), (StopReason.CONTEXT_LENGTH, FailureKind.DATA)],
)
def test_time_that_was_over_before_the_first_answer_is_not_the_tasks_fault(stop_reason, counted):
    buffer = make_buffer(group_size=1, max_attempts=1)
    (ticket,) = buffer.lease("worker", 1, 0.0)
    empty = msgspec.structs.replace(sample(ticket, 0, versions=()), stop_reason=stop_reason)
    buffer.commit([empty], 0.0)
    statistics = buffer.statistics()
    assert statistics.failures[counted] == 1
    assert sum(statistics.failures.values()) == 1
    again = buffer.lease("worker", 1, 0.0)[0]
    # At most one attempt is allowed, so a failure of the task's own ends the group; the other is issued again.
    assert (again.group_id == ticket.group_id) == (counted is FailureKind.INFRASTRUCTURE)


def several(ticket, index, *trajectories, **fields):
    """An episode of ``ticket`` with trajectories of (role, versions, whether it is trained), 5 tokens of each version."""
    records = tuple(
        TrajectoryRecord(3 + 5 * len(versions), tuple((version, 5) for version in versions), role=role, trained=trained)
        for role, versions, trained in trajectories
    )
    return msgspec.structs.replace(sample(ticket, index), trajectories=records, **fields)


def test_an_episode_of_several_trajectories_is_one_in_every_count():
    buffer = make_buffer(groups_per_step=1, max_staleness=1)
    (ticket,) = buffer.lease("w", 1, 0.0)
    for version in (1, 2):
        buffer.advance(version)
    made = [
        several(ticket, 0, ("a", (1, 2), True), ("b", (0, 1), True), ("c", (2,), False), reward=1.0),
        several(ticket, 1, ("a", (2,), True)),
    ]
    buffer.commit(made, 0.0)
    statistics = buffer.statistics()
    assert (statistics.ledger.trajectories.issued, statistics.ledger.trajectories.committed) == (2, 2)
    assert sum(statistics.lengths_issued) == 2
    assert statistics.lengths_issued[(13 + 13 + 8).bit_length()] == 1, "its length is that of all trajectories"
    assert buffer.groups[ticket.group_id].oldest_sampled == 0
    batch = buffer.batches.take(2, 1)
    assert [each.name for each in batch.episodes] == [(0, 0), (0, 1)]
    assert [(row.name, row.loss_tokens) for row in batch.rows] == [((0, 0, 0), 10), ((0, 0, 1), 5), ((0, 1, 0), 5)]
    assert buffer.statistics().stale_tokens.masked == 5
    assert len(list(buffer.groups.live_payload())) == 2
    assert buffer.batches.drop_lost_payload([made[0].payload]) == 1, "its payload is lost as a whole"
    assert buffer.statistics().lost_trajectories == 1


def test_an_episode_is_as_old_as_its_oldest_trajectory():
    buffer = make_buffer(groups_per_step=1, max_staleness=1, on_stale="drop")
    (ticket,) = buffer.lease("w", 1, 0.0)
    buffer.commit([several(ticket, index, ("a", (0,), True), ("b", (0, 1), True), reward=float(index)) for index in (0, 1)], 0.0)
    assert buffer.groups[ticket.group_id].birth == 0
    for version in (1, 2):
        buffer.advance(version)
    assert buffer.batches.has_stale(2)


@pytest.mark.parametrize(
    ("rewards", "role_rewards", "kept"),
    [
        ((0.0, 1.0), ({}, {}), True),
        ((1.0, 1.0), ({}, {}), False),
        ((1.0, 1.0), ({"b": 0.0}, {"b": 1.0}), True),
        ((1.0, 1.0), ({"c": 0.0}, {"c": 1.0}), False),
        ((0.0, 1.0), ({"a": 2.0, "b": 2.0}, {"a": 2.0, "b": 2.0}), False),
        ((0.0, 1.0), ({"a": 2.0, "b": 2.0}, {"a": 2.0}), True),
    ],
    ids=["episodes", "equal", "a role", "a role that is not trained", "only roles", "where a role has none"],
)
def test_a_group_varies_if_a_reward_varies_by_which_something_is_trained(rewards, role_rewards, kept):
    buffer = make_buffer(groups_per_step=1, filters=(ZeroVarianceFilterConfig(),))
    (ticket,) = buffer.lease("w", 1, 0.0)
    parts = ("a", (0,), True), ("b", (0,), True), ("c", (0,), False)
    fields = zip(rewards, role_rewards, strict=True)
    buffer.commit(
        [several(ticket, i, *parts, reward=one, role_rewards=by_role, rewards=()) for i, (one, by_role) in enumerate(fields)], 0.0
    )
    assert buffer.statistics().ledger.committed == kept


def test_a_group_in_which_nothing_is_trained_is_left_out_and_says_why():
    buffer = make_buffer(groups_per_step=1)
    (ticket,) = buffer.lease("w", 1, 0.0)
    buffer.commit([several(ticket, index, ("a", (0,), False), reward=float(index)) for index in (0, 1)], 0.0)
    ledger = buffer.statistics().ledger
    assert (ledger.filtered, ledger.reasons) == (1, {f"filtered: {NOTHING_TRAINED}": 1})
