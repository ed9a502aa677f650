"""What tests can do with an answer that runs in another process: here both are forked of this one, without a sandbox."""

import asyncio
import os
from collections import deque
from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from fractions import Fraction

import numpy
import pytest

from asyncrl.core.errors import EnvironmentBroken
from asyncrl.core.ids import TaskId
from asyncrl.core.task import Task
from asyncrl.envs.builtin.python import Python
from asyncrl.envs.code_judging.answer import serve
from asyncrl.envs.code_judging.plain import Channel, Ended, pack, unpack
from asyncrl.envs.code_judging.remote import Answer, Remote, Unjudgeable
from asyncrl.envs.code_judging.tests_code import why_no_test
from asyncrl.envs.rewards import CodeTests
from asyncrl.envs.sandbox.messages import Choice
from asyncrl.envs.sandbox.sandbox import Sandbox

CODE = """
import collections, math

class Full(ValueError): pass

class Stack:
    def __init__(self, most=2): self.items, self.most = [], most
    def push(self, item):
        if len(self.items) == self.most: raise Full("full", self.most)
        self.items.append(item)
        return self
    def pop(self): return self.items.pop()
    def __len__(self): return len(self.items)
    def __iter__(self): return iter(self.items)
    def __getitem__(self, at): return self.items[at]
    def __eq__(self, other): return self.items == other.items
    def __add__(self, other): return Stack().push(len(self) + len(other))
    def __neg__(self): return Stack(-self.most)
    def __enter__(self): return self
    def __exit__(self, *_): self.items.clear()

class Tall(Stack): pass
class Liar:
    def __len__(self): return 3
    def __iter__(self): return iter(())

LIMIT = 10 ** 30
def sort(values): values.sort(); return values
def count(texts): return collections.Counter(texts)
def apply(function, values): return [function(each) for each in values]
def squares(n):
    for i in range(n): yield i * i
async def later(value): return value
def fails(kind): raise kind("no")
def total(*values, start=0): return sum(values, start)
def first(values): return next(values)
def stacks(n): return collections.deque([Stack(n)])
def shout(text): print(text); print(end=text); return None
class Colour(__import__("enum").Enum): RED = 1; BLUE = 2
def twice(function): return lambda *values, **names: 2 * function(*values, **names)
def pair(): return collections.namedtuple("Pair", "x y")(1, 2)
"""


@pytest.fixture
def names() -> Iterator[dict[str, object]]:
    (from_here, to_answer), (from_answer, to_here) = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        os.close(to_answer)
        os.close(from_answer)
        serve(Channel(from_here, to_here))
        os._exit(0)
    for each in (from_here, to_here):
        os.close(each)
    yield Answer(Channel(from_answer, to_answer)).request("run", CODE)
    for each in (to_answer, from_answer):
        os.close(each)
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize(
    "tests",
    [
        "s = Stack()\ns.push(1).push(2)\nassert (len(s), s.pop(), s.most, list(s), s[0]) == (2, 2, 2, [1], 1)",
        "assert isinstance(Tall(), Stack) and issubclass(Tall, Stack)",
        "assert not isinstance(3, Stack) and not isinstance(Stack(), Tall)",
        "assert Stack().push(1) == Stack().push(1) and Stack() != Stack().push(1) and (Stack() + Stack())[0] == 0",
        "assert (-Stack(3)).most == -3 and stacks(4)[0].most == 4",
        "with Stack() as s:\n    s.push(1)\nassert len(s) == 0\ns.most = 7\nassert s.most == 7",
        "try: Stack(0).push(1)\nexcept Full as e: assert e.args == ('full', 0)\nelse: assert False",
        "try: Stack(0).push(1)\nexcept ValueError as e: assert 'full' in str(e)\nelse: assert False",
        "try: fails(KeyError)\nexcept KeyError as e: assert str(e) == \"'no'\"\nelse: assert False",
        "v = [3, 1, 2]\nw = sort(v)\nassert v == [1, 2, 3] and w is v",
        "assert count('aab') == {'a': 2, 'b': 1}\nassert pair() == (1, 2)",
        "assert apply(lambda x: x + 1, [1, 2]) == [2, 3] and apply(str, [1]) == ['1']",
        "assert list(squares(3)) == [0, 1, 4] and next(squares(2)) == 0 and 4 in squares(9)",
        "import asyncio\nasync def both(): return await asyncio.gather(later(1), later(2))\nassert asyncio.run(both()) == [1, 2]",
        "assert total(1, 2, start=3) == 6 and LIMIT == 10 ** 30 and first(iter((7, 8))) == 7",
        "assert total.__name__ == 'total' and callable(total)",
        "import contextlib, io\nwith contextlib.redirect_stdout(io.StringIO()) as out: shout('a')\n"
        "assert out.getvalue() == 'a\\na'",
        "assert Colour.RED is Colour.RED and Colour.RED is not Colour.BLUE and Colour(1) is Colour.RED",
        "assert twice(lambda a, b=0: a + b)(1, b=2) == 6",
        "try: list(Liar())\nexcept TypeError: pass\nelse: assert False",
        "assert Stack() != [] and [] != Stack() and not Stack() == 0",
        "for question in (lambda s: s + 1, lambda s: 1 + s, lambda s: s < 1, lambda s: abs(s), lambda s: s.startswith('')):\n"
        "    try: question(Stack())\n    except (TypeError, AttributeError): pass\n    else: assert False",
    ],
)
def test_tests_use_the_names_of_an_answer_as_if_it_ran_here(names: dict[str, object], tests: str):
    assert {name for name, value in names.items() if isinstance(value, Remote)} >= {"Stack", "sort", "later"}
    assert "math" not in names
    exec(tests, dict(names))


@pytest.mark.parametrize(
    ("tests", "problem"),
    [
        ("class Own: pass\ntotal(Own())", "hand an object of type Own to the answer"),
        ("class Own(Stack): pass", "derive a class from one of the answer's"),
    ],
)
def test_what_cannot_be_done_with_an_answer_in_another_process_is_said(names: dict[str, object], tests: str, problem: str):
    with pytest.raises(Unjudgeable, match=problem):
        exec(tests, dict(names))


VALUES = [
    Decimal("1.50"), Fraction(-1, 3), deque([1, (2,)], 5), date(2020, 1, 2), datetime(2020, 1, 2, 3, 4, 5, 6),
    timedelta(-1, 2, 3), time(1, 2),
    None, True, 1, -(10**40), 1.5, "a\ud800\n", [1, (2, {3}), {(4,): b"5"}], frozenset({1}), bytearray(b"x"), 1j, range(3),
]  # fmt: skip


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_plain_data_arrives_as_it_was(value: object):
    came = unpack(pack(value, dict), lambda tag, held: None)
    assert came == value
    assert type(came) is type(value)


@pytest.mark.parametrize("value", [datetime(2020, 1, 2, tzinfo=UTC), time(1, 2, tzinfo=UTC)])
def test_times_with_a_zone_do_not_arrive_as_other_times(value: object):
    assert pack(value, lambda stays: {"object": id(stays)}) == {"object": id(value)}


def test_arrays_of_numbers_arrive_and_other_arrays_do_not():
    for value in (numpy.arange(6).reshape(2, 3), numpy.array([1.5]), numpy.int8(3), numpy.zeros((0, 2))):
        came = unpack(pack(value, dict), lambda tag, held: None)
        assert came.dtype == value.dtype
        assert numpy.array_equal(came, value)
    for kind in ("|O", "|V8", "no kind", 3):
        with pytest.raises(Ended):
            unpack({"array": [kind, [1], [1]]}, lambda tag, held: None)


@pytest.mark.parametrize(
    "message",
    [
        {},
        {"a": 1, "b": 2},
        {"int": "z"},
        {"int": 1},
        {"set": [[]]},
        {"dict": [1]},
        {"range": ["a"]},
        {"bytes": 1},
        {"value": ["os", "system", ["true"]]},
        {"value": ["datetime", "date", [0]]},
        {"value": ["decimal", "Decimal", ["x"]]},
        {"value": ["fractions", "Fraction", [1, 0]]},
    ],
)
def test_what_is_no_message_ends_the_answer(message: object):
    with pytest.raises(Ended):
        unpack(message, lambda tag, held: None)


async def test_tests_that_cannot_judge_break_the_task_and_are_no_reward():
    async with Sandbox(Choice.NONE) as sandbox:
        for tests, problem in (
            ("assert add(1, 2) = 3", "is no Python: invalid syntax"),
            ("class Own: pass\nadd(Own(), 1)", "they hand an object of type Own"),
            ("METADATA = {'a': [1]}\n\n\ndef check(candidate):\n    assert candidate(1, 2) == 3\n", "only define check; call"),
            ("import unittest\nclass TestAdd(unittest.TestCase):\n    def test(self): add(1, 2)\n", "only define TestAdd; call"),
            ("def test(): add(1, 2)\nif __name__ == '__main__':\n    test()", "only define test; call"),
            ("", "they check nothing: they are empty"),
            ("from solution import add\nassert add(1, 2) == 3", "they import 'solution', which is not here; the answer's names"),
            ("import os, numpy as np\nassert add(1, 2) == 3", "they import 'numpy', which is not here; .*packages: true"),
        ):
            environment = Python()
            environment.shared = sandbox
            await environment.reset(Task(id=TaskId("t"), prompt="?", data={"tests": tests}))
            with pytest.raises(EnvironmentBroken, match="task 't': its tests cannot be judged: .*" + problem):
                await environment.reward(Task(id=TaskId("t"), prompt="?"), "def add(a, b): return a + b")
        task = Task(id=TaskId("t"), prompt="?", data={"tests": [{"call": "add(1,", "returns": 3}]})
        with pytest.raises(EnvironmentBroken, match="task 't': its tests cannot be judged"):
            await CodeTests(sandbox)(task, "def add(a, b): return a + b")


async def test_an_answer_is_judged_with_packages_too():
    pytest.importorskip("numpy")
    async with Sandbox(Choice.NONE) as sandbox:
        environment = Python(packages=True)
        environment.shared = sandbox
        tests = "import numpy as np\nassert np.allclose(twice(np.arange(3)), [0, 2, 4])\nassert twice(np.float64(2)) == 4"
        await environment.reset(Task(id=TaskId("t"), prompt="?", data={"tests": tests}))
        async with asyncio.timeout(60):
            assert await environment.reward(Task(id=TaskId("t"), prompt="?"), "def twice(x): return x * 2") == 1.0
            assert await environment.reward(Task(id=TaskId("t"), prompt="?"), "def twice(x): return x * 3") == 0.0


@pytest.mark.parametrize(
    "tests",
    ["class Checked:\n    assert add(1, 2) == 3", "def check(found=add(1, 2)): pass", "def check(*, found=add(1, 2)): pass"],
)
def test_what_is_run_where_it_is_defined_tests_something(tests):
    assert not why_no_test(tests)


@pytest.mark.parametrize(
    "tests", ["class Known:\n    sums = {3}\n    def check(self): pass", "def check(most=1e-6, *, kind): pass"]
)
def test_what_is_only_defined_tests_nothing(tests):
    assert "they check nothing: they only define" in why_no_test(tests)
