"""A curriculum is found by name, and whatever goes wrong in it is an error that names its class."""

import inspect
import pickle
import sys

import pytest

from asyncrl.buffers.tasks.curriculum import CurriculumBroken, load_curriculum
from asyncrl.buffers.tasks.task_stream import TaskSource, TaskStream
from asyncrl.core.errors import RecipeError
from asyncrl.core.recipe.tasks import CurriculumConfig
from asyncrl.core.task import Task


class Fixed:
    """A curriculum whose weights are those of its options."""

    def __init__(self, sources, weights=None, state=None):
        self.sources, self.given, self.told = sources, weights or [1.0] * len(sources), state or {}
        self.observed = []

    def weights(self):
        return self.given

    def observe(self, source, rewards):
        self.observed.append((source, rewards))

    def state(self):
        return self.told

    def restore(self, state):
        self.told = state


class Raising(Fixed):
    """Raises in the method it is told to."""

    def weights(self):
        return self._or_raise("weights", super().weights())

    def observe(self, source, rewards):
        self._or_raise("observe", None)

    def state(self):
        return self._or_raise("state", super().state())

    def restore(self, state):
        self._or_raise("restore", None)

    def _or_raise(self, method, answer):
        if getattr(self, "raise_in", "") == method:
            raise KeyError("level")
        return answer


@pytest.fixture(autouse=True)
def module(monkeypatch, tmp_path):
    """What a user writes: a module in the folder that the command is run in."""
    (tmp_path / "curricula_under_test.py").write_text(
        f"{inspect.getsource(Fixed)}\nclass Half:\n    def weights(self):\n        return [1.0]\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("curricula_under_test", None)


def stream(curriculum):
    return TaskStream([TaskSource(name, [Task(id=name, prompt="")]) for name in "ab"], seed=0, curriculum=curriculum)


def load(**options):
    return load_curriculum(CurriculumConfig(name="curricula_under_test:Fixed", options=options), ["a", "b"])


def test_it_is_made_with_the_names_of_the_sources_and_its_options():
    curriculum = load(weights=[0, 1])
    assert curriculum.sources == ("a", "b")
    drawn = stream(curriculum)
    assert [drawn.next().source for _ in range(3)] == ["b"] * 3
    drawn.observe("b", [1, 0.5])
    assert curriculum.observed == [("b", (1, 0.5))]


@pytest.mark.parametrize(
    ("name", "options", "place", "told"),
    [
        ("curricula_under_test:Fxed", {}, "tasks.curriculum.name", "Fixed"),
        ("nowhere:Fixed", {}, "tasks.curriculum.name", "nowhere"),
        ("curricula_under_test:Half", {}, "tasks.curriculum.name", "has no observe, state, restore"),
        ("curricula_under_test:Fixed", {"speed": 2}, "tasks.curriculum.options", "unexpected keyword argument 'speed'"),
    ],
)
def test_what_cannot_be_loaded_is_refused(name, options, place, told):
    with pytest.raises(RecipeError) as caught:
        load_curriculum(CurriculumConfig(name=name, options=options), ["a", "b"])
    assert caught.value.place == place
    assert told in str(caught.value)


@pytest.mark.parametrize(
    ("weights", "told"),
    [
        ([1.0, -0.5], "not negative"),
        ([0.0, 0.0], "above 0"),
        ([1.0], "1 weights for 2 sources"),
        ([1.0, float("nan")], "finite"),
        ([1.0, float("inf")], "finite"),
        ([1.0, "many"], "could not convert"),
        (3, "not iterable"),
    ],
)
def test_bad_weights_are_refused_when_loaded_and_when_drawn(weights, told):
    with pytest.raises(RecipeError, match=r"tasks\.curriculum\.name: curricula_under_test:Fixed: weights\(\)") as caught:
        load(weights=weights)
    assert told in str(caught.value)
    curriculum = load()
    drawn = stream(curriculum)
    drawn.next()
    before = drawn.state()
    curriculum.given = weights
    with pytest.raises(CurriculumBroken):
        drawn.next()
    assert drawn.state() == before, "a draw that failed must not move the stream"


@pytest.mark.parametrize("state", [{"x": object()}, {"x": 2**70}, [1, 2]])
def test_a_state_that_cannot_be_stored_is_refused_before_anything_starts(state):
    with pytest.raises(RecipeError, match=r"Fixed: state\(\) returned what cannot be stored"):
        load(state=state)


@pytest.mark.parametrize("method", ["weights", "observe", "state", "restore"])
def test_what_a_curriculum_raises_names_its_class_and_method(method):
    curriculum = Raising(("a", "b"))
    drawn = stream(curriculum)
    state = drawn.state()
    calls = {
        "weights": drawn.next,
        "observe": lambda: drawn.observe("a", [1.0]),
        "state": drawn.state,
        "restore": lambda: drawn.restore(state),
    }
    curriculum.raise_in = method
    with pytest.raises(CurriculumBroken, match=rf"test_curriculum:Raising: {method}\(\) raised KeyError: 'level'"):
        calls[method]()


def test_the_error_survives_the_way_between_processes():
    error = CurriculumBroken("a:B", "weights() returned 0 for every source", "leave one above 0")
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
