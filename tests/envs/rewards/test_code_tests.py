"""Programs are run in the real sandbox, where there is one."""

import asyncio
import base64
import json
import os
import pickle
import threading
import time
import zlib
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import pytest_asyncio

from asyncrl.core.errors import EnvironmentBroken, RecipeError
from asyncrl.core.ids import TaskId
from asyncrl.core.task import Task
from asyncrl.envs.rewards import CodeTests
from asyncrl.envs.rewards.code_tests import RUNS_AT_ONCE, _is_alike
from asyncrl.envs.sandbox.limits import Limits
from asyncrl.envs.sandbox.messages import Finished
from asyncrl.envs.sandbox.sandbox import Sandbox

CALLS = [{"call": "add(1, 2)", "returns": 3}, {"call": "add(-1, 1)", "returns": 0}, {"call": "add([1], [2])", "returns": [1, 2]}]
PRINTS = [{"stdin": "1 2\n", "stdout": "3"}, {"stdin": "2 2\n", "stdout": "4\n"}]

LIMITS = Limits(wall_s=120.0, cpu_s=60.0)


def task(tests: object) -> Task:
    return Task(id=TaskId("t"), prompt="?", data={"tests": tests})


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def sandbox() -> AsyncIterator[Sandbox]:
    try:
        async with Sandbox() as sandbox:
            yield sandbox
    except RecipeError as error:
        pytest.skip(f"no sandbox works here: {error}")


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(
    ("answer", "tests", "share"),
    [
        ("Here:\n```python\ndef add(a, b):\n    return a + b\n```\nDone.", CALLS, 1.0),
        ("def add(a, b):\n    return 3", CALLS, 1 / 3),
        ("def add(a, b):\n    return a - b", CALLS, 0.0),
        ("def add(a, b", CALLS, 0.0),
        ("import sys\nsys.exit(0)", CALLS, 0.0),
        ("open('results', 'w').write('[3]\\n[0]\\n')\nimport os\nos._exit(0)", CALLS, 0.0),
        ("def add(a, b):\n    return a + b if a == 1 else __import__('os')._exit(0)", CALLS, 1 / 3),
        ("import os\nos.makedirs('a/b')\nos.chmod('a', 0)\ndef add(a, b):\n    return a + b", CALLS, 1.0),
        ("a, b = map(int, input().split())\nprint(a + b)", PRINTS, 1.0),
        ("def add(a, b): return {'a': [(a + b) * 10**30]}", [{"call": "add(1, 2)", "returns": {"a": [str(3 * 10**30)]}}], 1.0),
        ("print(3)", PRINTS, 0.5),
        ("print(3)\nraise SystemExit(1)", PRINTS, 0.0),
        ("def add(a, b):\n    return a + b\nif __name__ == '__main__':\n    print(3)", [*CALLS, PRINTS[0]], 1.0),
    ],
)
async def test_the_share_of_passed_tests(
    sandbox: Sandbox, answer: str, tests: object, share: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert await CodeTests(sandbox, all_or_nothing=False, limits=LIMITS)(task(tests), answer) == pytest.approx(share)
    assert await CodeTests(sandbox, limits=LIMITS)(task(tests), answer) == float(share == 1.0)
    assert not [name for name in os.listdir(tmp_path) if name.startswith("asyncrl-tests-")]


@pytest.mark.asyncio(loop_scope="module")
async def test_more_may_be_expected_than_a_run_may_print(sandbox: Sandbox):
    tests = [{"stdin": "", "stdout": "123456789\n" * 20_000}]
    reward = CodeTests(sandbox, limits=Limits(wall_s=120.0, cpu_s=60.0, output_kb=1))
    programs = ("print('123456789\\n' * 20_000)", "for _ in range(20_000): print('123456789 ')", "print('12345678\\n' * 20_000)")
    assert [await reward(task(tests), program) for program in programs] == [1.0, 1.0, 0.0]
    assert await reward(task(tests), "while True: print('123456789')") == 0.0
    with pytest.raises(
        EnvironmentBroken, match=r"task 't': a test cannot be run: 17,578 KiB of output .* 16,384 .*; expect less$"
    ):
        await reward(task([{"stdin": "", "stdout": "123456789\n" * 1_800_000}]), "pass")


@pytest.mark.asyncio(loop_scope="module")
async def test_a_program_that_does_not_end_passes_nothing(sandbox: Sandbox):
    reward = CodeTests(sandbox, limits=Limits(wall_s=0.5))
    assert await reward(task(CALLS), "while True: pass") == 0.0


@pytest.mark.asyncio(loop_scope="module")
async def test_calls_that_passed_before_one_that_does_not_end_count(sandbox: Sandbox):
    reward = CodeTests(sandbox, all_or_nothing=False, limits=Limits(wall_s=5.0, cpu_s=1.0))
    assert await reward(task(CALLS), "def add(a, b):\n    while a == -1: pass\n    return a + b") == pytest.approx(1 / 3)


@pytest.mark.asyncio(loop_scope="module")
async def test_a_huge_result_holds_nobody_up(sandbox: Sandbox):
    """64 MiB of brackets took the event loop 12 s to read."""
    longest, ends = 0.0, asyncio.Event()

    async def look_at_the_clock() -> None:
        nonlocal longest
        while not ends.is_set():
            before = time.monotonic()
            await asyncio.sleep(0.01)
            longest = max(longest, time.monotonic() - before)

    looking = asyncio.create_task(look_at_the_clock())
    huge = "def add(a, b):\n    return [[]] * 15_000_000"
    assert await CodeTests(sandbox, limits=LIMITS)(task(CALLS), huge) == 0.0
    written = "def add(a, b):\n    open('results', 'w').write(('[' + '[],' * 20_000_000 + '[]]\\n') * 3)\n    return 0"
    assert await CodeTests(sandbox, limits=LIMITS)(task(CALLS), written) == 0.0
    ends.set()
    await looking
    assert longest < 5.0


@pytest.mark.asyncio(loop_scope="module")
async def test_tests_that_cannot_be_read_break_the_task(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("asyncrl.envs.rewards.code_test_shapes.MOST_BYTES", 2**20)
    for tests, problem in (
        ([], "holds no test"),
        (["add(1, 2) == 3"], "cannot be read as tests"),
        ([{"call": 1, "returns": 2}], "Expected `str`, got `int`"),
        ([{"stdin": ""}], "missing required field `stdout`"),
        (3, "'int' object is not iterable"),
        ("assert add(1, 2) == 3", "the text is no JSON"),
        (private(os.getcwd), "the text is no JSON"),  # nothing but text is unpickled
        *((packed(pickled), "the text is no JSON") for pickled in BROKEN_PICKLES),
        (packed(b"x" * (2**20 + 1)), "it unpacks to more than 1 MiB"),
        ("[" * 100_000, "recursion"),
        ("9" * 5000, "Exceeds the limit"),
        ({"inputs": ["1"], "outputs": []}, "it has 1 inputs and 0 outputs"),
        ({"inputs": [[1]], "outputs": [1], "fn_name": "f(1) or g"}, r"'f\(1\) or g' is no name of a function"),
        ({"inputs": [3], "outputs": [1], "fn_name": "f"}, "its arguments are no list, but int"),
        ([{"input": "1", "output": "1", "testtype": "functional"}], "does not name as `func_name`"),
        ([{"input": "1", "output": "1", "testtype": "interactive"}], "Invalid enum value 'interactive'"),
    ):
        with pytest.raises(EnvironmentBroken, match=f"task 't': .*{problem}"):
            await CodeTests(sandbox)(task(tests), "pass")
    unnamed = Task(id=TaskId("t"), prompt="?", data={"tests": TOTALS, "metadata": {"func_name": 5}})
    with pytest.raises(EnvironmentBroken, match="does not name as `func_name`"):
        await CodeTests(sandbox)(unnamed, "pass")


BROKEN_PICKLES = (
    b"\x80\x04\x8c\x01x}b.",  # gives a text a state
    b"\x80\x04\x8c\x01xK\x01a.",  # appends to a text
    b"\x80\x04\x8c\x01x(K\x01\x90.",  # adds to a text as to a set
    b"\x80\x04\x8e" + b"\xff" * 7 + b"\x7f.",  # has more bytes than there are
    pickle.dumps("[" * 100_000),
)


def private(value: object) -> str:
    """``private_test_cases`` of LiveCodeBench."""
    return packed(pickle.dumps(value if not isinstance(value, list) else json.dumps(value)))


def packed(pickled: bytes) -> str:
    return base64.b64encode(zlib.compress(pickled)).decode()


SOLUTION = "class Solution:\n    def total(self, values: List[int], start: int = 0) -> int:\n        return sum(values, start)"
PROGRAM = "n = int(input())\nprint(sum(map(int, input().split())) / n)"
TOTALS = [
    {"input": "[1, 2]\n3", "output": "6", "testtype": "functional"},
    {"input": "[]", "output": "0", "testtype": "functional"},
]
MEANS = [{"input": "3\n1 0 0\n", "output": "0.3333333\n", "testtype": "stdin"}]
NAMED = {"metadata": '{"func_name": "total"}'}


def input_output(**given: object) -> dict[str, object]:
    return {"tests": json.dumps(given)}


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(
    ("data", "answer", "share"),
    [
        (input_output(inputs=[[[1, 2]], [[1], 2]], outputs=[3, [3]], fn_name="total"), SOLUTION, 1.0),
        (input_output(inputs=[[[1, 2]], [[1], 2]], outputs=[3, [4]], fn_name="total"), SOLUTION, 0.5),
        (input_output(inputs=[[10**30]], outputs=[[10**30]], fn_name="same"), "def same(value):\n    return value", 1.0),
        (
            input_output(inputs=[[2, 5, 7]], outputs=[4], fn_name="p"),
            "from __future__ import annotations\ndef p(*n): return pow(*n)",
            1.0,
        ),
        (input_output(inputs=[[8, 12]], outputs=[4], fn_name="gcd"), "pass", 0.0),  # what is imported for it is no answer
        (
            input_output(inputs=[[3, 2]], outputs=[30], fn_name="comb"),
            "from math import *\nclass Solution:\n    def comb(self, n, k): return 10 * comb(n, k)",
            1.0,
        ),
        (
            input_output(inputs=[[5000]], outputs=[[5000]], fn_name="deep"),
            "def deep(n): return reduce(xor, deepcopy([n ^ 1, 1])) if n < 2 else 1 + deep(n - 1)",
            1.0,
        ),
        (
            input_output(inputs=[[{"1": 2, "-3": 4}]], outputs=[[{"1": 2}]], fn_name="f"),
            "def f(d): return {k: d[k] for k in [1]}",
            1.0,
        ),
        (
            input_output(inputs=[[{"1": 2, "a": 4}, [{"5": 6}]]], outputs=[8], fn_name="f"),
            "def f(d, e): return d['1'] + e[0]['5']",
            1.0,
        ),
        (input_output(inputs=[[{"007": 2, "7": 4}]], outputs=[6], fn_name="f"), "def f(d): return d['007'] + d['7']", 1.0),
        (input_output(inputs=[["a"]], outputs=[[["a", 1]]], fn_name="f"), "def f(x): return [(x, 1)]", 1.0),
        (input_output(inputs=["3\n1 0 0\n", ["1", "5"]], outputs=["\n0.3333333\n", ["5.0"]]), PROGRAM, 1.0),
        (input_output(inputs=["3\n1 0 0\n", ["1", "5"]], outputs=["0.3334", ["5"]]), PROGRAM, 0.5),
        (input_output(inputs=["", ""], outputs=["1 2", "1\n2"]), "print('1  2 ')", 0.5),
        ({"tests": json.dumps(MEANS)}, PROGRAM, 1.0),
        ({"tests": private(MEANS)}, PROGRAM, 1.0),
        ({"tests": json.dumps(TOTALS)} | NAMED, SOLUTION, 1.0),
        ({"tests": private(TOTALS)} | NAMED, SOLUTION.replace("start)", ")"), 0.5),
        ({"tests": TOTALS, "metadata": {"func_name": "total"}}, SOLUTION, 1.0),
        ({"tests": json.dumps(CALLS)}, "def add(a, b): return a + b", 1.0),
    ],
)
async def test_tests_are_read_as_data_sets_have_them(sandbox: Sandbox, data: dict[str, object], answer: str, share: float):
    reward = CodeTests(sandbox, all_or_nothing=False, limits=LIMITS)
    assert await reward(Task(id=TaskId("t"), prompt="?", data=data), answer) == share


@pytest.mark.asyncio(loop_scope="module")
async def test_tests_of_several_columns_all_count(sandbox: Sandbox):
    columns = ("public_test_cases", "private_test_cases")
    data = {columns[0]: json.dumps(TOTALS[:1]), columns[1]: private(TOTALS[1:]), **NAMED}
    reward = CodeTests(sandbox, key=columns, all_or_nothing=False, limits=LIMITS)
    answers = (SOLUTION, SOLUTION.replace("start)", ")"), "class Solution:\n    def total(self, values): return 0")
    assert [await reward(Task(id=TaskId("t"), prompt="?", data=data), answer) for answer in answers] == [1.0, 0.5, 0.5]
    none = Task(id=TaskId("t"), prompt="?", data={columns[0]: "[]", columns[1]: "[]"})
    with pytest.raises(EnvironmentBroken, match=r"data\['public_test_cases'\] \+ data\['private_test_cases'\] holds no test"):
        await reward(none, "pass")
    with pytest.raises(EnvironmentBroken, match="needs data 'private_test_cases'"):
        await reward(Task(id=TaskId("t"), prompt="?", data={columns[0]: "[]"}), "pass")


async def test_tests_are_not_read_on_the_event_loop(monkeypatch: pytest.MonkeyPatch):
    threads = []

    def read_tests(found: object, metadata: object) -> list[object]:
        threads.append(threading.current_thread())
        return []

    monkeypatch.setattr("asyncrl.envs.rewards.code_tests.read_tests", read_tests)
    with pytest.raises(EnvironmentBroken, match="holds no test"):
        await CodeTests(SimpleNamespace())(task("..."), "pass")
    assert threading.current_thread() not in threads


@pytest.mark.parametrize(
    ("printed", "wanted", "alike"),
    [
        ("5.0", "5", True),
        ("4.9999999999", "5", True),
        ("5.1", "5", False),
        ("1000000000000000001", "1000000000000000000", False),
        ("1000000000000000001.0", "1000000000000000000", False),  # a float has no such digits
        ("123456700.0", "123456789", False),  # an estimate
        ("123456789.0000001", "123456789.0", True),
        ("007", "7", False),
        ("1e3", "1000", False),
        ("nan", "1.0", False),
        ("inf", "1.0", False),
        ("1.5", "one", False),
        ("1.0e9999999999999999999", "5", False),
        ("one", "1.5", False),
        ("1.0e9999", "5.0", False),
        ("1.2.3", "1.2.3", True),
        ("1.2.3", "1.2.4", False),
    ],
)
def test_what_is_printed_need_not_have_the_same_last_digits(printed: str, wanted: str, alike: bool):
    assert _is_alike(printed, wanted) == alike


@pytest.mark.asyncio(loop_scope="module")
async def test_the_first_output_that_is_wrong_ends_the_tests(sandbox: Sandbox):
    begun = []

    async def run(*arguments: object) -> Finished:
        begun.append(arguments)
        return await sandbox.run(*arguments)

    counted = CodeTests(SimpleNamespace(run=run, folder=sandbox.folder), limits=LIMITS)
    tests = [{"stdin": "", "stdout": "3"}] * 40 + [{"stdin": "", "stdout": "4"}] * 60
    assert await counted(task(tests), "print(4)") == 0.0
    assert len(begun) == RUNS_AT_ONCE
