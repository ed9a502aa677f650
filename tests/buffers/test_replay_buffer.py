"""The buffer: pace, guarantee, oldest first, attempts, and the bound under heavy-tailed durations."""

import heapq
import random
from collections import Counter

import msgspec
import pytest
from rows import row

from asyncrl.core.errors import BudgetExceeded, FailureKind, LedgerError
from asyncrl.core.recipe.schema import Batch, Buffer, Environment, Model, Recipe
from asyncrl.core.task import Task
from asyncrl.core.trajectory import decode
from buffers.replay_buffer import ReplayBuffer
from buffers.tasks import TaskSource


def make_buffer(steps=100, groups_per_step=2, group_size=2, tasks=50, **buffer):
    recipe = Recipe(
        name="test",
        steps=steps,
        model=Model(path="nowhere"),
        environment=Environment(name="none"),
        batch=Batch(groups_per_step=groups_per_step, group_size=group_size),
        buffer=Buffer(**buffer),
    )
    return ReplayBuffer(recipe, TaskSource([Task(id=f"task-{i}", prompt="") for i in range(tasks)], seed=1))


def finish(buffer, ticket, versions=(0,), **options):
    buffer.commit([row(ticket, i, versions, **options) for i in range(ticket.size)])


def test_pace_counts_running_committed_and_the_batch_being_trained():
    buffer = make_buffer(pipeline_depth=1)
    tickets = buffer.issue(100)
    assert len(tickets) == 4
    finish(buffer, tickets[0])
    finish(buffer, tickets[1])
    assert buffer.room() == 0
    batch = buffer.take(0, 2)
    assert buffer.room() == 0, "a batch in training is outstanding until the clock has moved past it"
    buffer.trained(batch)
    buffer.advance(1)
    assert buffer.room() == 2


def test_no_more_groups_than_the_run_can_train():
    buffer = make_buffer(steps=1, pipeline_depth=3)
    assert len(buffer.issue(100)) == 2


def test_oldest_first_and_groups_whole():
    buffer = make_buffer(pipeline_depth=3, groups_per_step=2)
    tickets = buffer.issue(4)
    for ticket in reversed(tickets):
        finish(buffer, ticket)
    batch = buffer.take(0, 2)
    assert [(r.group_id, r.sample_index) for r in batch.rows] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert [decode(p).group_id for p in buffer.payload([(1, 0), (0, 1)])] == [1, 0]


def test_incomplete_groups_are_not_handed_out():
    buffer = make_buffer(groups_per_step=1)
    (ticket, *_) = buffer.issue(1)
    buffer.commit([row(ticket, 0)])
    assert buffer.take(0, 1) is None
    buffer.commit([row(ticket, 1)])
    assert len(buffer.take(0, 1).rows) == 2


def test_masking_counts_only_tokens_within_the_bound():
    buffer = make_buffer(groups_per_step=1, max_staleness=2, pipeline_depth=1)
    (ticket, *_) = buffer.issue(1)
    for version in range(1, 5):
        buffer.advance(version)
    finish(buffer, ticket, versions=(1, 2, 4))
    batch = buffer.take(4, 1)
    assert batch.oldest_version == 2
    assert [r.loss_tokens for r in batch.rows] == [4, 4]


@pytest.mark.parametrize(("on_stale", "expired"), [("mask", 1), ("drop", 2)])
def test_groups_over_the_bound_expire_and_their_tasks_come_back_first(on_stale, expired):
    buffer = make_buffer(groups_per_step=3, max_staleness=1, pipeline_depth=1, on_stale=on_stale)
    wholly_old, partly_old, fresh = buffer.issue(3)
    finish(buffer, wholly_old, versions=(0, 1))
    finish(buffer, partly_old, versions=(1, 2))
    finish(buffer, fresh, versions=(2, 3))
    assert buffer.take(3, 3) is None
    assert buffer.statistics().ledger.expired == expired
    again = [ticket.task.id for ticket in buffer.issue(expired)]
    assert again == [wholly_old.task.id, partly_old.task.id][:expired]


def test_payload_is_freed_when_trained():
    buffer = make_buffer(groups_per_step=1)
    (ticket, *_) = buffer.issue(1)
    finish(buffer, ticket)
    assert buffer.statistics().payload_bytes > 0
    batch = buffer.take(0, 1)
    buffer.trained(batch)
    assert buffer.statistics().payload_bytes == 0
    with pytest.raises(LedgerError, match="is not held"):
        buffer.payload([(ticket.group_id, 0)])


def test_infrastructure_failures_do_not_count_against_the_task():
    buffer = make_buffer(groups_per_step=1, max_attempts=1)
    (ticket,) = buffer.issue(1)
    buffer.fail(ticket.group_id, FailureKind.INFRASTRUCTURE, "engine died")
    (again,) = buffer.issue(1)
    assert (again.task, again.attempt) == (ticket.task, 0)
    assert again.group_id != ticket.group_id


def test_a_task_that_breaks_its_environment_is_filtered_and_named():
    buffer = make_buffer(groups_per_step=1, max_attempts=2)
    (first,) = buffer.issue(1)
    buffer.fail(first.group_id, FailureKind.DATA, "KeyError")
    (second,) = buffer.issue(1)
    assert (second.task, second.attempt) == (first.task, 1)
    buffer.fail(second.group_id, FailureKind.DATA, "KeyError")
    assert buffer.statistics().filtered_tasks == (first.task.id,)
    (third,) = buffer.issue(1)
    assert third.task != first.task


def test_too_many_failures_stop_the_run_with_the_reason():
    buffer = make_buffer(groups_per_step=1, max_failures=1)
    (ticket,) = buffer.issue(1)
    buffer.fail(ticket.group_id, FailureKind.INFRASTRUCTURE, "engine died")
    (ticket,) = buffer.issue(1)
    with pytest.raises(BudgetExceeded, match=r"2 groups failed \(infrastructure\).*engine died"):
        buffer.fail(ticket.group_id, FailureKind.INFRASTRUCTURE, "engine died")


def test_a_sample_is_taken_in_once():
    buffer = make_buffer()
    (ticket, *_) = buffer.issue(1)
    buffer.commit([row(ticket, 0)])
    with pytest.raises(LedgerError, match="handed in before"):
        buffer.commit([row(ticket, 0)])


def test_a_group_without_sampled_tokens_is_a_failed_attempt():
    buffer = make_buffer(groups_per_step=1)
    (ticket,) = buffer.issue(1)
    finish(buffer, ticket, versions=())
    assert buffer.statistics().ledger.failed == 1


def test_malformed_bytes_are_refused():
    with pytest.raises(msgspec.DecodeError):
        make_buffer().commit([b"\xff\xff"])


def test_the_clock_moves_by_one():
    buffer = make_buffer()
    with pytest.raises(LedgerError, match="moves by one"):
        buffer.advance(2)


@pytest.mark.parametrize("on_stale", ["mask", "drop"])
@pytest.mark.parametrize(("depth", "bound"), [(0, 0), (1, 1), (2, 3)])
def test_the_bound_holds_under_heavy_tailed_durations(on_stale, depth, bound):
    """A simulated pool: durations are Pareto(1.2), weights change under running episodes, some groups fail."""
    rng = random.Random(depth * 10 + bound)
    steps, workers, now, version = 60, 6, 0.0, 0
    buffer = make_buffer(
        steps=steps, groups_per_step=4, max_staleness=bound, pipeline_depth=depth, on_stale=on_stale, max_failures=10**6
    )
    running: list[tuple[float, int, object, int]] = []
    trained: Counter[str] = Counter()
    oldest_seen = 0
    while version < steps:
        for ticket in buffer.issue(workers - len(running)):
            heapq.heappush(running, (now + rng.paretovariate(1.2), ticket.group_id, ticket, version))
        batch = buffer.take(version, 4)
        if batch is None and buffer.room() and len(running) < workers:
            continue  # groups expired just now, so there is room for new ones
        if batch is None:
            now, _, ticket, began = heapq.heappop(running)
            if rng.random() < 0.1:
                buffer.fail(ticket.group_id, FailureKind.INFRASTRUCTURE, "simulated")
            else:
                finish(buffer, ticket, versions=tuple(range(began, version + 1)))
            continue
        for record in batch.rows:
            (payload,) = buffer.payload([(record.group_id, record.sample_index)])
            versions = decode(payload).versions()
            in_loss = versions[versions >= max(0, batch.oldest_version)]
            assert len(in_loss) == record.loss_tokens > 0
            oldest_seen = max(oldest_seen, version - int(in_loss.min()))
            if on_stale == "drop":
                assert (versions[versions >= 0] >= version - bound).all()
            trained[record.task_id] += record.sample_index == 0
        buffer.trained(batch)
        version += 1
        buffer.advance(version)
    assert oldest_seen <= bound
    counts = buffer.statistics().ledger
    assert counts.trained == sum(trained.values()) == steps * 4
    assert counts.issued == counts.trained + counts.failed + counts.expired + counts.running + counts.committed
    if depth:
        assert oldest_seen > 0, "the simulation is asynchronous"
