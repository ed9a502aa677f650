"""An error of the user's code is blamed on the method that raised it, in the user's own line, and counted there."""

import json
import logging
import pickle
from collections.abc import Callable
from typing import NoReturn

import msgspec
import pytest

from asyncrl.core.errors import EnvironmentBroken
from asyncrl.core.ids import TaskId
from asyncrl.core.plug_ins import error_counts
from asyncrl.core.plug_ins.error_counts import MOST_PLACES, CountedError, ErrorCounts, merged
from asyncrl.core.plug_ins.users_error import USERS_CODE_MARK, UsersError, WrongResult
from asyncrl.core.task import Task
from asyncrl.envs import Action, ToolEnvironment
from asyncrl.envs.builtin import calculator
from asyncrl.envs.builtin.calculator import Calculator

TASK = Task(id=TaskId("t"), prompt="p")


def caught(call: Callable[[], object]) -> BaseException:
    with pytest.raises(BaseException) as raised:  # noqa: PT011 - of any kind
        call()
    return raised.value


def line_of(text: str) -> int:
    with open(__file__) as file:
        (line,) = [number for number, line in enumerate(file, 1) if line.strip().endswith(f"# {text}")]
    return line


class Typo(ToolEnvironment):
    def reward(self, task: Task, answer: str) -> float:
        return self.score(task)

    def score(self, task: Task) -> float:
        return float(task.data["answer"])  # the typo


class Forgetful(ToolEnvironment):
    def reward(self, task: Task, answer: str) -> float:  # what returns nothing
        answer.strip()  # type: ignore[return]


async def step_error(environment: ToolEnvironment) -> UsersError:
    await environment.reset(TASK)
    with pytest.raises((KeyError, WrongResult)) as raised:
        await environment.step(Action("", ()))
    return UsersError.of(raised.value, type(environment).step)


async def test_the_method_that_our_code_called_is_named_and_the_line_that_raised():
    error = await step_error(Typo())
    assert (error.method, error.file, error.line, error.kind) == ("reward", __file__, line_of("the typo"), "KeyError")
    assert str(error) == f"reward() of test_users_error.py:{error.line} raised KeyError: 'answer'"
    assert 'return float(task.data["answer"])' in error.traceback
    assert "return self.score(task)" in error.traceback
    assert "asyncrl/envs" not in error.traceback


async def test_an_environment_of_ours_is_blamed_like_the_users_where_its_module_says_so(monkeypatch: pytest.MonkeyPatch):
    marked = await step_error(Calculator())
    assert (marked.method, marked.file) == ("reward", calculator.__file__)
    monkeypatch.delattr(calculator, USERS_CODE_MARK)
    assert (await step_error(Calculator())).file == __file__  # whose call our code passed on


async def test_a_method_that_returns_something_wrong_is_named_with_the_line_of_its_definition():
    error = await step_error(Forgetful())
    assert (error.method, error.file, error.line) == ("reward", __file__, line_of("what returns nothing"))
    assert str(error).startswith(f"reward() of test_users_error.py:{error.line} returned None; it must return a finite number")


def test_frames_of_libraries_below_the_users_are_shown_but_not_blamed():
    error = UsersError.of(caught(lambda: json.loads("{")))  # the library
    assert (error.file, error.line, error.kind) == (__file__, line_of("the library"), "JSONDecodeError")
    assert "json/decoder.py" in error.traceback


def test_an_error_without_a_frame_of_the_users_blames_the_method_that_was_called():
    error = UsersError.of(ValueError("its reward is nan"), Typo.score)
    assert (error.method, error.file) == ("score", __file__)
    assert UsersError.of(ValueError("x"), ToolEnvironment.step).file == ""
    assert str(UsersError.of(ValueError("x"))) == "the environment raised ValueError: x"


def test_an_error_that_cannot_be_looked_at_is_told_all_the_same():
    class Hostile(Exception):
        def __str__(self) -> NoReturn:
            raise SystemExit(1)

    def fail() -> NoReturn:
        raise Hostile

    error = UsersError.of(caught(fail))
    assert error.problem == "raised Hostile: (no text: its __str__ raised SystemExit)"
    assert msgspec.json.decode(msgspec.json.encode(error), type=UsersError) == error
    surrogate = UsersError.of(ValueError("\udcff"))
    assert pickle.loads(pickle.dumps(surrogate)) == surrogate
    assert b"udcff" in msgspec.json.encode(surrogate)


def test_what_our_own_code_says_on_purpose_needs_no_class_and_no_frames():
    def ask() -> NoReturn:
        raise EnvironmentBroken("the judge m: its reply holds no score")

    error = UsersError.of(caught(ask))
    assert str(error) == f"caught() of test_users_error.py:{error.line} cannot go on: the judge m: its reply holds no score"
    assert (error.kind, error.traceback) == ("EnvironmentBroken", "")

    def wrap() -> NoReturn:
        try:
            {}["answer"]
        except KeyError as missing:
            raise EnvironmentBroken("it has no answer") from missing

    assert "KeyError" in UsersError.of(caught(wrap)).traceback
    long = UsersError.of(caught(lambda: (_ for _ in ()).throw(EnvironmentBroken("x" * 400))))
    assert "x" * 400 in long.traceback


def test_errors_are_counted_by_kind_and_place_and_the_first_is_logged_with_its_traceback(caplog: pytest.LogCaptureFixture):
    counts = ErrorCounts()
    error = UsersError.of(caught(lambda: json.loads("{")))
    other = UsersError.of(caught(lambda: json.loads("[")))
    with caplog.at_level(logging.WARNING):
        for number in range(12):
            counts.count(error, f"task {number}")
        counts.count(other, "task 99")
    first, second = counts.counted
    assert (first.times, first.example, second.times, second.example) == (12, "task 0", 1, "task 99")
    assert str(first).endswith(" (12 times)")
    assert str(second).endswith(" (once)")
    said = [record.getMessage() for record in caplog.records if record.name == error_counts.__name__]
    assert [text.partition(":")[0] for text in said] == ["task 0", "for the 10th time", "task 99"]
    assert ["Traceback" in text for text in said] == [True, False, True]


def test_counts_of_several_processes_are_added_up_by_place():
    error = UsersError.of(WrongResult(Typo.score, "returned None"))
    one, two = ErrorCounts(), ErrorCounts()
    one.count(error, "task a")
    two.count(error, "task b")
    two.count(error, "task c")
    (sum_,) = merged(one.counted + two.counted)
    assert (sum_.times, sum_.example) == (3, "task a")


def test_a_flood_of_different_errors_is_not_kept():
    counts = ErrorCounts()
    for number in range(2 * MOST_PLACES):
        counts.count(UsersError("reward", "env.py", number, "ValueError", "raised ValueError: x"), "task t")
    assert len(counts.counted) == MOST_PLACES
    assert all(isinstance(error, CountedError) for error in counts.counted)
