"""The stream is a pure function of seed and position, mixes sources by weight, and goes on from its state as if never stopped."""

from collections import Counter
from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncrl.buffers.tasks.permutation import Permutation
from asyncrl.buffers.tasks.task_stream import NoTaskLeft, TaskSource, TaskStream, source_names
from asyncrl.core.errors import RecipeError
from asyncrl.core.recipe.tasks import TaskFileConfig
from asyncrl.core.task import Task


def source(name: str, count: int, weight: float = 1.0, prompt: str = "") -> TaskSource:
    return TaskSource(name, [Task(id=f"{name}/{i}", prompt=prompt) for i in range(count)], weight)


def ids(stream: TaskStream, count: int) -> list[str]:
    return [stream.next().task.id for _ in range(count)]


class Follower:
    """A curriculum: a source weighs one more than the sum of the rewards its tasks got."""

    def __init__(self, sources):
        self.rewards = dict.fromkeys(sources, 0.0)

    def weights(self):
        return [1 + sum_ for sum_ in self.rewards.values()]

    def observe(self, source, rewards):
        self.rewards[source] += sum(rewards)

    def state(self):
        return {"rewards": self.rewards}

    def restore(self, state):
        self.rewards = dict(state["rewards"])


sizes = st.integers(1, 300) | st.sampled_from([1_000, 4_095, 4_096, 4_097])
weights = st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=6)
sources = st.lists(st.tuples(st.integers(1, 9), st.floats(0.01, 100)), min_size=1, max_size=4).map(
    lambda drawn: [source(f"s{index}", count, weight) for index, (count, weight) in enumerate(drawn)]
)


@given(sources, st.data())
def test_tasks_that_are_too_long_are_passed_over_in_every_epoch_and_after_a_resume(sources, data):
    left_out = {}
    for each in sources:
        last = len(each.tasks) - 1
        left_out[each.name] = data.draw(st.sets(st.integers(0, last), max_size=last))
    stream, twin = TaskStream(sources, seed=3), TaskStream(sources, seed=3)
    before = ids(stream, data.draw(st.integers(0, 20)))
    stream.set_too_long(512, left_out)
    twin.restore(stream.state())
    later = ids(stream, 60)
    assert later == ids(twin, 60)
    assert not {f"{name}/{index}" for name, indexes in left_out.items() for index in indexes} & set(later)
    of_source = Counter(task.partition("/")[0] for task in [*before, *later])
    assert stream.drawn == twin.drawn == {each.name: of_source[each.name] for each in sources}
    assert stream.too_long == twin.too_long == {name: len(indexes) for name, indexes in left_out.items() if indexes}


def test_a_larger_context_brings_tasks_back_and_the_same_one_forgets_none():
    stream = TaskStream([source("s", 3)], seed=3)
    stream.set_too_long(512, {"s": [0]})
    stream.leave_out("s", 1)
    stream.set_too_long(512, {"s": [0]})
    assert stream.too_long == {"s": 2}, "a resume does not know what was met in play"
    assert set(ids(stream, 9)) == {"s/2"}
    stream.set_too_long(1024, {"s": [2]})
    assert set(ids(stream, 9)) == {"s/0", "s/1"}


def test_a_source_of_which_all_tasks_are_too_long_says_so():
    stream = TaskStream([source("s", 2)], seed=3)
    stream.leave_out("s", 0)
    stream.leave_out("s", 1)
    with pytest.raises(NoTaskLeft, match=r"all tasks of s are too long for model\.max_context.*raise it"):
        stream.next()


@given(sizes, st.text())
def test_a_permutation_holds_every_number_once(size, key):
    permutation = Permutation(size, key)
    assert sorted(permutation[position] for position in range(size)) == list(range(size))


@given(st.integers(1, 10**12), st.text(), st.data())
def test_a_permutation_of_any_size_is_asked_at_any_position(size, key, data):
    positions = data.draw(st.lists(st.integers(0, size - 1), min_size=1, max_size=20, unique=True))
    images = [Permutation(size, key)[position] for position in positions]
    assert len(set(images)) == len(images)
    assert all(0 <= image < size for image in images)
    with pytest.raises(IndexError):
        Permutation(size, key)[size]


@pytest.mark.parametrize("size", [2, 3, 7, 10])
def test_over_keys_every_number_comes_first_equally_often(size):
    """Chi-square with size - 1 degrees of freedom is at most its mean and five deviations: chance stays far below."""
    keys = 6_000
    for position in (0, size - 1):
        seen = Counter(Permutation(size, f"{key}")[position] for key in range(keys))
        expected = keys / size
        chi_square = sum((seen[number] - expected) ** 2 / expected for number in range(size))
        assert chi_square < size - 1 + 5 * (2 * (size - 1)) ** 0.5


def test_neighbours_are_torn_apart():
    size = 10_000
    permutation = Permutation(size, "x")
    images = [permutation[position] for position in range(size)]
    steps = [abs(after - before) for before, after in pairwise(images)]
    assert sum(steps) / len(steps) == pytest.approx(size / 3, rel=0.03)  # the mean distance of two random numbers


@given(sources, st.integers(0, 2**31 - 1))
def test_each_source_gives_every_task_once_an_epoch(drawn, seed):
    stream = TaskStream(drawn, seed)
    by_source: dict[str, list[str]] = {each.name: [] for each in drawn}
    for _ in range(60):
        task = stream.next()
        by_source[task.source].append(task.task.id)
    for each in drawn:
        size = len(each.tasks)
        for start in range(0, len(by_source[each.name]), size):
            epoch = by_source[each.name][start : start + size]
            assert len(set(epoch)) == len(epoch)


def test_epochs_and_seeds_differ_in_order():
    stream = TaskStream([source("a", 50)], seed=3)
    first, second = ids(stream, 50), ids(stream, 50)
    assert sorted(first) == sorted(second)
    assert first != second
    assert ids(TaskStream([source("a", 50)], seed=4), 50) != first


def test_the_order_within_a_source_does_not_depend_on_the_others():
    alone = ids(TaskStream([source("a", 20)], seed=3), 20)
    mixed = TaskStream([source("b", 7, 3.0), source("a", 20), source("c", 4)], seed=3)
    drawn = [task.task.id for task in (mixed.next() for _ in range(100)) if task.source == "a"]
    assert drawn[:20] == alone


@given(weights, st.integers(1, 400))
def test_at_every_moment_each_source_is_within_one_draw_of_its_share(drawn_weights, draws):
    stream = TaskStream([source(f"s{index}", 3, weight) for index, weight in enumerate(drawn_weights)], seed=0)
    total = sum(map(Fraction, drawn_weights))
    counts = Counter()
    for draw in range(1, draws + 1):
        counts[stream.next().source] += 1
        for index, weight in enumerate(drawn_weights):
            share = draw * Fraction(weight) / total
            assert abs(counts[f"s{index}"] - share) <= 1 + draw * len(drawn_weights) * Fraction(1, 2**31)


@given(sources, st.integers(0, 99), st.integers(0, 120), st.booleans())
def test_a_restored_stream_goes_on_as_if_never_stopped(drawn, seed, stop, with_curriculum):
    def fresh():
        return TaskStream(drawn, seed, Follower([each.name for each in drawn]) if with_curriculum else None)

    def run(stream, begin, end):
        seen = []
        for number in range(begin, end):
            task = stream.next()
            seen.append((task.source, task.task.id))
            if number % 3 == 0:
                stream.observe(task.source, [0.0, 1.0])
        return seen

    uninterrupted = fresh()
    whole = run(uninterrupted, 0, 150)
    first = fresh()
    before = run(first, 0, stop)
    second = fresh()
    second.restore(first.state())
    assert sum(second.drawn.values()) == stop
    assert before + run(second, stop, 150) == whole
    assert second.state() == uninterrupted.state()


def test_a_state_is_not_changed_by_what_is_drawn_after_it_was_told():
    stream = TaskStream([source("a", 5), source("b", 5)], seed=0, curriculum=Follower(["a", "b"]))
    state = stream.state()
    expected = ids(stream, 7)
    stream.observe("b", [5.0])
    ids(stream, 7)
    stream.restore(state)
    assert ids(stream, 7) == expected


def test_rewards_move_the_shares_through_the_curriculum():
    stream = TaskStream([source("a", 5), source("b", 5)], seed=0, curriculum=Follower(["a", "b"]))
    assert Counter(stream.next().source for _ in range(100)) == {"a": 50, "b": 50}
    stream.observe("a", [1.0, 1.0])
    assert Counter(stream.next().source for _ in range(100)) == {"a": 75, "b": 25}
    TaskStream([source("a", 5)], seed=0).observe("a", [1.0])  # without a curriculum nobody listens


@given(st.lists(st.lists(st.sampled_from([0.0, 0.5, 1.0, 7.0]), min_size=3, max_size=3).filter(any), min_size=1, max_size=50))
def test_a_source_of_weight_zero_is_never_drawn(schedule):
    class Scheduled(Follower):
        def weights(self):
            return schedule[step]

    stream = TaskStream([source("a", 2), source("b", 2), source("c", 2)], seed=0, curriculum=Scheduled("abc"))
    for step, now in enumerate(schedule):  # noqa: B007  (weights() reads it)
        assert now["abc".index(stream.next().source)] > 0


def test_the_fingerprint_is_of_seed_names_and_content():
    def fingerprint(*drawn, seed=0):
        return TaskStream(drawn, seed).fingerprint()

    usual = fingerprint(source("a", 3), source("b", 4))
    assert usual == fingerprint(source("a", 3), source("b", 4))
    others = [
        fingerprint(source("a", 3), source("b", 4), seed=1),
        fingerprint(source("a", 3), source("c", 4)),
        fingerprint(source("b", 4), source("a", 3)),
        fingerprint(source("a", 3), source("b", 5)),
        fingerprint(source("a", 3, prompt="other"), source("b", 4)),
    ]
    assert len({usual, *others}) == 6


def test_a_stream_without_tasks_is_refused():
    with pytest.raises(RecipeError, match="not a single task"):
        TaskStream([], seed=0)
    with pytest.raises(RecipeError, match="not a single task"):
        TaskStream([source("a", 1), source("b", 0)], seed=0)


@pytest.mark.parametrize(
    ("paths", "names"),
    [
        (["data/gsm8k.jsonl"], ["gsm8k.jsonl"]),
        (
            ["math/train.parquet", "code/train.parquet", "/x/more.jsonl"],
            ["math/train.parquet", "code/train.parquet", "more.jsonl"],
        ),
        (["a/x/t.jsonl", "b/x/t.jsonl", "t.jsonl"], ["a/x/t.jsonl", "b/x/t.jsonl", "t.jsonl"]),
    ],
)
def test_a_source_is_called_by_the_end_of_its_path(paths, names):
    assert source_names([TaskFileConfig(path=path) for path in paths], "tasks.train") == names


@settings(max_examples=50)
@given(st.lists(st.tuples(st.lists(st.sampled_from("abc"), min_size=1, max_size=4), st.sampled_from(["", "x"])), max_size=8))
def test_names_of_different_sources_differ(drawn):
    files = [
        TaskFileConfig(path="/".join(parts), split=split)
        for parts, split in {("/".join(p), s): (p, s) for p, s in drawn}.values()
    ]
    assert len(set(source_names(files, "tasks.train"))) == len(files)


def test_splits_of_one_folder_are_sources_and_the_same_one_twice_is_refused():
    files = [TaskFileConfig(path="d/gsm8k", split="train", weight=3), TaskFileConfig(path="d/gsm8k", split="extra")]
    assert source_names(files, "tasks.train") == ["gsm8k:train", "gsm8k:extra"]
    with pytest.raises(RecipeError, match=r"tasks.train\[2\]: d/gsm8k is listed twice"):
        source_names([*files, TaskFileConfig(path="./d/gsm8k", split="extra")], "tasks.train")
