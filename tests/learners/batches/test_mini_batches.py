from hypothesis import given
from hypothesis import strategies as st
from learner_samples import NO_PAYLOAD

from asyncrl.core.batch import Batch, BatchEpisode
from asyncrl.core.episode_records import TrajectoryRecord
from asyncrl.core.ids import GroupId, PolicyVersion, TaskId
from asyncrl.core.trajectory import StopReason
from asyncrl.learners.batches.mini_batches import mini_batches, order


def make(version, sizes):
    sampled = TrajectoryRecord(9, ((PolicyVersion(version), 2),))
    episodes = tuple(
        BatchEpisode(
            group_id=GroupId(7 * group),
            sample_index=sample,
            reward=0.0,
            stop_reason=StopReason.ENVIRONMENT_DONE,
            payload=NO_PAYLOAD,
            trajectories=(sampled,) * (1 + sample % 2),
            committed_version=PolicyVersion(version),
            task_id=TaskId("task"),
            weight=1.0,
        )
        for group, size in enumerate(sizes)
        for sample in range(size)
    )
    return Batch(PolicyVersion(version), PolicyVersion(0), episodes)


BATCHES = st.builds(make, st.integers(0, 99), st.lists(st.integers(1, 4), min_size=1, max_size=9))


@given(BATCHES, st.integers(1, 10))
def test_every_row_once_and_groups_whole_and_evenly_dealt(batch, count):
    parts = mini_batches(batch, count)
    assert len(parts) == count
    assert sorted(row.name for part in parts for row in part.rows) == sorted(row.name for row in batch.rows)
    groups = [{row.group_id for row in part.rows} for part in parts]
    assert sum(map(len, groups)) == len({row.group_id for row in batch.rows})
    assert max(map(len, groups)) - min(map(len, groups)) <= 1
    assert {(part.version, part.oldest_version) for part in parts} == {(batch.version, batch.oldest_version)}
    assert parts == mini_batches(batch, count)


@given(BATCHES, st.integers(1, 10), st.integers(1, 4))
def test_every_epoch_trains_each_part_once(batch, count, epochs):
    numbers = order(batch, count, epochs)
    assert len(numbers) == count * epochs
    for epoch in range(epochs):
        assert sorted(numbers[epoch * count : (epoch + 1) * count]) == list(range(count))
    assert numbers == order(batch, count, epochs)


def test_parts_and_their_order_change_from_batch_to_batch():
    one, other = make(3, [1] * 8), make(4, [1] * 8)
    assert [[row.group_id for row in part.rows] for part in mini_batches(one, 2)] != [
        [row.group_id for row in part.rows] for part in mini_batches(other, 2)
    ]
    assert len({tuple(order(one, 8, 3)[start : start + 8]) for start in (0, 8, 16)}) == 3
