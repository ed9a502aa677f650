"""The environments ``python`` and ``terminal``, with their tools in the sandbox that this machine has."""

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from asyncrl.core.ids import TaskId
from asyncrl.core.messages import ToolCall
from asyncrl.core.task import Task
from asyncrl.envs.base import Action
from asyncrl.envs.builtin.answers import is_answer
from asyncrl.envs.builtin.python import Python, computation_of
from asyncrl.envs.builtin.python import call as python_call
from asyncrl.envs.builtin.sandboxed import SandboxedEnvironment
from asyncrl.envs.builtin.terminal import Terminal, errand_of
from asyncrl.envs.builtin.terminal import call as shell_call
from asyncrl.envs.sandbox.backends.bubblewrap import Bubblewrap
from asyncrl.envs.sandbox.backends.sandlock import Sandlock
from asyncrl.envs.sandbox.limits import MOST_OUTPUT_KB, Limits
from asyncrl.envs.sandbox.messages import Choice, Reason
from asyncrl.envs.sandbox.sandbox import Sandbox

ANY = Choice.AUTO if Sandlock().missing() is None or Bubblewrap().missing() is None else Choice.NONE
LIMITS = Limits(wall_s=120.0, cpu_s=60.0)
Play = Callable[..., "Played"]


class Played:
    """An episode under way."""

    def __init__(self, environment: SandboxedEnvironment, task: Task) -> None:
        self.environment, self._task = environment, task
        self._begun = False

    async def call(self, call: ToolCall) -> str:
        await self._begin()
        return (await self.environment.step(Action("", (call,)))).observation.messages[0].content

    async def answer(self, text: str) -> float:
        await self._begin()
        return (await self.environment.step(Action(text, ()))).reward

    async def _begin(self) -> None:
        if not self._begun:
            await self.environment.reset(self._task)
            self._begun = True


@pytest.fixture
async def play() -> AsyncIterator[Play]:
    """Begin episodes whose environments share one sandbox, as in a worker."""
    async with Sandbox(ANY) as sandbox:

        def begin(environment: SandboxedEnvironment, **data: object) -> Played:
            environment.shared = sandbox
            environment.tool_timeout_s = 240.0
            return Played(environment, Task(id=TaskId("t"), prompt="Do it.", data=data))

        yield begin


async def test_python_returns_what_is_printed_and_the_last_value(play: Play) -> None:
    episode = play(Python(ANY, LIMITS), answer=1)
    assert await episode.call(python_call("x = 6\nprint('six')\nx * 7")) == "six\n42"
    assert await episode.call(python_call("x = 1")) == "(no output)"
    assert await episode.call(python_call("input()")) == "EOFError: EOF when reading a line (line 1)"


async def test_python_returns_the_last_line_of_a_traceback(play: Play) -> None:
    episode = play(Python(ANY, LIMITS), answer=1)
    code = "def f():\n    return 1 / 0\nprint('before')\nf()"
    assert await episode.call(python_call(code)) == "before\nZeroDivisionError: division by zero (line 2)"
    assert await episode.call(python_call("1 +")) == "SyntaxError: invalid syntax (line 1)"
    assert await episode.call(python_call("raise SystemExit(3)")) == "(exit status 3)"


async def test_python_keeps_files_and_can_import_them(play: Play) -> None:
    episode = play(Python(ANY, LIMITS), answer=1, files={"data/numbers.txt": "4\n5\n"})
    await episode.call(python_call("open('mine.py', 'w').write('def twice(x): return 2 * x')"))
    code = "import mine\nmine.twice(sum(map(int, open('data/numbers.txt'))))"
    assert await episode.call(python_call(code)) == "18"


async def test_python_cannot_read_what_is_outside(play: Play, tmp_path: Path) -> None:
    if ANY is Choice.NONE:
        pytest.skip("no sandbox on this machine")
    (tmp_path / "secret").write_text("s3cret")
    told = await play(Python(ANY, LIMITS), answer=1).call(python_call(f"open({str(tmp_path / 'secret')!r}).read()"))
    assert "s3cret" not in told
    assert told.startswith(("PermissionError", "FileNotFoundError"))


async def test_a_stopped_run_is_told_and_the_episode_goes_on(play: Play) -> None:
    episode = play(Python(ANY, Limits(wall_s=0.3)), answer=1)
    assert await episode.call(python_call("import time\ntime.sleep(100)")) == "(stopped: it took longer than 0.3 s)"
    assert await episode.answer("1") == 1.0


async def test_code_that_no_command_can_read_is_a_tool_error(play: Play) -> None:
    episode = play(Terminal(ANY, LIMITS), answer=1)
    assert (await episode.call(shell_call("echo \0"))).startswith("error: the command cannot be run: it contains a NUL")
    assert (await episode.call(shell_call("x" * 200_000))).startswith("error: the command cannot be run: it is longer")


async def test_tests_of_an_answers_code(play: Play) -> None:
    tests = "assert double(4) == 8\nassert double('a') == 'aa'"
    right = "Here it is:\n```python\ndef double(x):\n    return x + x\n```"
    answers = {
        right: 1.0,
        right.replace("x + x", "x * x"): 0.0,
        "def double(x): return 2 * x": 1.0,
        "import sys; sys.exit(0)": 0.0,
        "import os; os._exit(0)": 0.0,
        "print('passed')\nwhile True: pass": 0.0,
        "not code": 0.0,
    }
    for answer, reward in answers.items():
        assert await play(Python(ANY, Limits(wall_s=120.0, cpu_s=1.0)), tests=tests).answer(answer) == reward, answer


async def test_a_task_that_says_nothing_of_its_answer_breaks_the_environment() -> None:
    for data in ({}, {"answer": 1, "tests": "assert True"}, {"answer": [1]}):
        with pytest.raises(ValueError, match="task t: its data do not fit"):
            await Python(ANY).reset(Task(id=TaskId("t"), prompt="?", data=data))
    for tests in ('{"inputs": [[true]], "outputs": [1], "fn_name": "f"}', '[{"input": "1", "output": "1", "testtype": "stdin"}]'):
        with pytest.raises(ValueError, match=r"its `tests` are JSON, and here they are Python code; .*CodeTests"):
            await Python(ANY).reset(Task(id=TaskId("t"), prompt="?", data={"tests": tests}))
    for answer in ("", " \n", float("nan")):
        for environment in (Python(ANY), Terminal(ANY)):
            with pytest.raises(ValueError, match=r"its `answer` is .*; give a text or a number"):
                await environment.reset(Task(id=TaskId("t"), prompt="?", data={"answer": answer}))
    with pytest.raises(ValueError, match="say what is expected"):
        await Terminal(ANY).reset(Task(id=TaskId("t"), prompt="?"))
    large = {"expected": {"a": "x", "b": "x" * (MOST_OUTPUT_KB << 10)}}
    with pytest.raises(ValueError, match=r"KiB of output are expected, .* takes at most [\d,]+ KiB of a run; expect less"):
        await Terminal(ANY).reset(Task(id=TaskId("t"), prompt="?", data=large))


async def test_a_file_of_a_task_stays_in_its_folder() -> None:
    for name in ("/etc/x", "../x", "a/../../x"):
        with pytest.raises(ValueError, match="is not in its folder"):
            await Terminal(ANY).reset(Task(id=TaskId("t"), prompt="?", data={"answer": 1, "files": {name: ""}}))


async def test_shell_commands_share_the_folder(play: Play) -> None:
    episode = play(Terminal(ANY, LIMITS), files={"a/b.txt": "2\n10\n"}, expected={"c.txt": "10"})
    assert await episode.call(shell_call("sort -n a/b.txt | tail -n 1 > c.txt")) == "(no output)"
    assert await episode.call(shell_call("cat c.txt; false")) == "10\n(exit status 1)"
    assert await episode.answer("done") == 1.0


async def test_the_folder_decides_the_reward(play: Play) -> None:
    files = {"in": "x\n"}
    wanted: dict[str, object] = {"files": files, "expected": {"out": "x"}, "check": "test ! -e in", "answer": "done"}
    cases = {"mv in out": 1.0, "cp in out": 0.0, "rm in": 0.0, "mv in out; echo y >> out": 0.0, "ln -s /etc/hostname out": 0.0}
    for command, reward in cases.items():
        episode = play(Terminal(ANY, LIMITS), **wanted)
        await episode.call(shell_call(command))
        assert await episode.answer("done") == reward, command
    episode = play(Terminal(ANY, LIMITS), **wanted)
    await episode.call(shell_call("mv in out"))
    assert await episode.answer("I gave up") == 0.0


async def test_more_may_be_expected_and_a_check_may_print_more_than_a_call_may(play: Play) -> None:
    content = "123456789\n" * 20_000
    limits = Limits(wall_s=120.0, cpu_s=60.0, output_kb=1)
    for command, reward in {"cp in out": 1.0, "head -n 19999 in >out": 0.0, "cp in out; echo >in": 0.0}.items():
        episode = play(
            Terminal(ANY, limits), files={"in": content}, expected={"out": content}, check="cat in out >&2; cmp in out"
        )
        await episode.call(shell_call(command))
        assert await episode.answer("done") == reward, command


async def test_what_a_command_leaves_behind_cannot_stop_the_reward(play: Play) -> None:
    """A pipe that nobody writes to, and a link to an endless device, in the place of the expected file."""
    for trap in ("mkfifo out", "ln -s /dev/zero out", "mkdir out"):
        episode = play(Terminal(ANY, Limits(wall_s=1.0)), expected={"out": "x"})
        await episode.call(shell_call(trap))
        assert await episode.answer("done") == 0.0


async def test_generated_tasks_are_solved_by_their_own_solution(play: Play) -> None:
    for task in Python.make_tasks("train", 8, 0):
        episode = play(Python(ANY, LIMITS), **task.data)
        assert await episode.answer(await episode.call(python_call(computation_of(task)[1]))) == 1.0
    for task in Terminal.make_tasks("train", 8, 0):
        episode = play(Terminal(ANY, LIMITS), **task.data)
        await episode.call(shell_call(errand_of(task)[1]))
        assert await episode.answer("done") == 1.0


@pytest.mark.parametrize("environment", [Python, Terminal])
def test_generated_tasks_differ_and_the_splits_have_none_in_common(environment: type[Python | Terminal]) -> None:
    train, evaluation = environment.make_tasks("train", 2000, 1), environment.make_tasks("evaluation", 300, 2)
    assert (len({task.id for task in train}), len({task.id for task in evaluation})) == (2000, 300)
    assert {task.id for task in train}.isdisjoint(task.id for task in evaluation)
    assert environment.make_tasks("train", 50, 1) == train[:50]
    assert {task.data["kind"] for task in train[:4]} == {task.data["kind"] for task in train}


@pytest.mark.parametrize(
    ("text", "expected", "right"),
    [
        ("42", 42, True),
        ("it is 1,234,567.", 1234567, True),
        ("first 7, then -3", -3, True),
        ("3.1415927", 3.14159265, True),
        ("3.14", 3.14159265, False),
        ("1000000000001", 1000000000000, False),
        ("1e3", 1000, True),
        ("100000000000000000", 10**17, True),
        ("100,000,000,000,000,000", 10**17 + 1, False),
        ("100000000000000001", 10**17 + 1, True),
        ("2.9999999999999996", 3, True),
        ("9" * 5000, 10**40, False),
        ("1e999999999", 1, False),
        ("1e-999999999", 0, True),
        ("1e-999999999", 1e-300, True),
        ("1e17", 1e17 + 16, True),
        ("9", float("inf"), False),
        ("the answer is 1/2", 2, False),
        ("the answer is 1/2", 0.5, True),
        ("12/4", 3, True),
        ("1/0", 0, False),
        ("10^17", 10**17, True),
        ("10^{17}", 17, False),
        ("2**10", 1024, True),
        ("9^999999999", 9, False),
        ("2^0.5", 1, False),
        ("1,2,3", 123, False),
        ("2-1", 1, True),
        ("none", 1, False),
        ("So:\n Paris \n", "Paris", True),
        ("Paris or London", "Paris", False),
        ("<think>London?</think>\nParis", "Paris", True),
        ("<think>\nParis?\n</think>\nLondon", "Paris", False),
        ("It is <answer> Paris </answer>.", "Paris", True),
        ("<think>So 7.</think> There is none.", 7, False),
        ("It has <answer>7</answer> of the 12.", 7, True),
        ("So:\na 1 \nb 2\n", "a 1\nb 2", True),
        ("b 2", "a 1\nb 2", False),
        ("The answer is 1234.", "1,234", True),
        ("The answer is 34.", "34", True),
        ("The answer is 35.", "34", False),
        ("It is 7.", "007", False),
        ("It is 3.1", "3.10", False),
    ],
)
def test_answers_are_compared(text: str, expected: float | str, right: bool) -> None:
    assert is_answer(text, expected) is right


async def test_an_environment_outside_a_worker_has_a_sandbox_of_its_own() -> None:
    environment = Terminal(ANY, LIMITS)
    await environment.reset(Task(id=TaskId("t"), prompt="?", data={"answer": 1}))
    finished = await environment.run(["/bin/sh", "-c", "echo x"])
    assert (finished.stdout, finished.reason) == (b"x\n", Reason.EXITED)
    await environment.close()
