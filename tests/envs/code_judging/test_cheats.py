"""Rewards are tried by a policy that cheats, with each sandbox that this machine has and with none."""

from collections.abc import AsyncIterator

import cheats
import pytest
import pytest_asyncio

from asyncrl.core.ids import TaskId
from asyncrl.core.task import Task
from asyncrl.envs.base import Action
from asyncrl.envs.builtin.python import Python
from asyncrl.envs.builtin.terminal import Terminal, call
from asyncrl.envs.rewards import CodeTests
from asyncrl.envs.sandbox.backends.bubblewrap import Bubblewrap
from asyncrl.envs.sandbox.backends.sandlock import Sandlock
from asyncrl.envs.sandbox.limits import Limits
from asyncrl.envs.sandbox.messages import BackendName, Choice
from asyncrl.envs.sandbox.sandbox import Sandbox

pytestmark = pytest.mark.asyncio(loop_scope="module")
HERE = [choice for choice, backend in ((Choice.SANDLOCK, Sandlock()), (Choice.BUBBLEWRAP, Bubblewrap())) if not backend.missing()]
LIMITS = Limits(wall_s=20.0)


@pytest_asyncio.fixture(loop_scope="module", scope="module", params=[*HERE, Choice.NONE])
async def sandbox(request: pytest.FixtureRequest) -> AsyncIterator[Sandbox]:
    async with Sandbox(request.param) as sandbox:
        yield sandbox


async def of_python(sandbox: Sandbox, answer: str, tests: str = cheats.TESTS) -> float:
    environment = Python(limits=LIMITS)
    environment.shared = sandbox
    await environment.reset(Task(id=TaskId("t"), prompt="?", data={"tests": tests}))
    return (await environment.step(Action(answer, ()))).reward


async def of_code_tests(sandbox: Sandbox, answer: str) -> float:
    task = Task(id=TaskId("t"), prompt="?", data={"tests": cheats.CALLS})
    rewards = await CodeTests(sandbox, all_or_nothing=False, limits=LIMITS)(task, answer)
    return float(rewards)


@pytest.mark.parametrize("cheat", cheats.ANSWERS, ids=str)
async def test_an_answer_that_cheats_passes_no_test(sandbox: Sandbox, cheat: cheats.Cheat):
    assert (await of_python(sandbox, cheat.code), await of_code_tests(sandbox, cheat.code)) == (0.0, 0.0)


@pytest.mark.parametrize("cheat", cheats.LOOP_ENDS, ids=str)
async def test_an_answer_cannot_end_the_loop_of_a_test(sandbox: Sandbox, cheat: cheats.Cheat):
    assert await of_python(sandbox, cheat.code, cheats.LOOP_TESTS) == 0.0
    assert await of_python(sandbox, cheats.RIGHT, cheats.LOOP_TESTS) == 1.0


async def test_iterators_of_an_answer_still_end(sandbox: Sandbox):
    answer = "def add(a, b):\n    yield a\n    yield b\n"
    tests = "items = add(1, 2)\nassert (next(items), [*items], next(items, None)) == (1, [2], None)"
    assert await of_python(sandbox, answer, tests) == 1.0


@pytest.mark.parametrize(("answer", "tests"), cheats.HONEST)
async def test_honest_answers_that_return_more_than_lists_pass(sandbox: Sandbox, answer: str, tests: str):
    assert await of_python(sandbox, answer, tests) == 1.0


async def test_a_field_of_a_named_tuple_answers_nothing_that_data_is_asked(sandbox: Sandbox):
    answer = (
        "from collections import namedtuple\nText = namedtuple('Text', 'startswith x')\n"
        "def add(a, b): return Text(lambda _: True, 1)\n"
    )
    assert await of_python(sandbox, answer, "assert add('a', 'b').startswith('ab')") == 0.0


async def test_the_right_answer_passes_what_the_cheats_are_tried_on(sandbox: Sandbox):
    assert (await of_python(sandbox, cheats.RIGHT), await of_code_tests(sandbox, cheats.RIGHT)) == (1.0, 1.0)


async def of_terminal(sandbox: Sandbox, check: str, command: str, limits: Limits = LIMITS) -> float:
    environment = Terminal(limits=limits)
    environment.shared = sandbox
    data = {"files": {"in": "3\n"}, "check": check, "check_files": cheats.CHECK_FILES}
    await environment.reset(Task(id=TaskId("t"), prompt="?", data=data))
    await environment.step(Action("", (call(command),)))
    return (await environment.step(Action("done", ()))).reward


@pytest.mark.parametrize("cheat", cheats.COMMANDS, ids=str)
async def test_commands_that_cheat_pass_no_check(sandbox: Sandbox, cheat: cheats.Cheat):
    limits = Limits(wall_s=cheat.wall_s)
    rewards = {name: await of_terminal(sandbox, check, cheat.code, limits) for name, check in cheats.CHECKS.items()}
    assert rewards == dict.fromkeys(cheats.CHECKS, 0.0)


@pytest.mark.parametrize("check", cheats.CHECKS)
async def test_the_right_command_passes_every_check(sandbox: Sandbox, check: str):
    if check == "make" and sandbox.backend is BackendName.SANDLOCK:
        pytest.skip("make may crash in sandlock, which writes into the memory of programs that start others by vfork")
    assert await of_terminal(sandbox, cheats.CHECKS[check], "echo '[3]' >out") == 1.0


async def test_there_are_cheats_of_every_kind():
    kinds = {cheat.kind for cheat in (*cheats.ANSWERS, *cheats.COMMANDS)}
    assert len({str(cheat) for cheat in (*cheats.ANSWERS, *cheats.COMMANDS)}) >= 40
    assert len(kinds) >= 11
