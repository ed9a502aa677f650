"""Which episodes of a step are kept."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st
from played_episodes import in_batch, record

from asyncrl.core.batch import Batch
from asyncrl.core.ids import GroupId, PolicyVersion
from asyncrl.core.recipe.trajectories import AllTrajectoriesConfig, NoTrajectoriesConfig, SampledTrajectoriesConfig
from asyncrl.episodes.kept_sample import kept_episodes


def batch(sizes, version=3):
    episodes = [
        in_batch(record(group_id=GroupId(group), sample_index=sample, length=1, sampled=(), reward=0.0))
        for group, size in enumerate(sizes)
        for sample in range(size)
    ]
    return Batch(PolicyVersion(version), PolicyVersion(0), tuple(episodes))


sizes = st.lists(st.integers(1, 5), min_size=1, max_size=6)


@given(sizes, st.integers(1, 40), st.integers(0, 50))
def test_a_sample_is_spread_over_the_groups(sizes, count, version):
    of = batch(sizes, version)
    names = [each.name for each in of.episodes]
    kept = kept_episodes(of, SampledTrajectoriesConfig(count=count))
    assert len(kept) == min(count, len(names))
    assert kept == [name for name in names if name in set(kept)], "in the order of the batch, each once"
    of_group = Counter(group for group, _ in kept)
    most = max(of_group.values())
    assert all(of_group[group] >= min(size, most - 1) for group, size in enumerate(sizes))
    assert kept == kept_episodes(of, SampledTrajectoriesConfig(count=count)), "a step done again keeps the same"


def test_other_steps_keep_other_samples():
    chosen = {tuple(kept_episodes(batch([4] * 8, version), SampledTrajectoriesConfig(count=4))) for version in range(20)}
    assert len(chosen) > 10


def test_all_and_none_are_what_they_say():
    of = batch([2, 1])
    assert kept_episodes(of, AllTrajectoriesConfig()) == [(0, 0), (0, 1), (1, 0)]
    assert kept_episodes(of, NoTrajectoriesConfig()) == []
