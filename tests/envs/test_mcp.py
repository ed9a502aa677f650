"""MCP servers in processes of their own."""

import asyncio
import logging
import random
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from asyncrl.core.errors import EnvironmentLost, EnvironmentUnreachable, RecipeError
from asyncrl.core.ids import TaskId
from asyncrl.core.messages import CallOutcome, Message, ToolCall, ToolSpec
from asyncrl.core.recipe.environment import McpEnvironment as McpConfig
from asyncrl.core.task import Task
from asyncrl.envs import Action, Fault, ToolError
from asyncrl.envs.calculator import Calculator
from asyncrl.envs.load import load_member
from asyncrl.envs.mcp import calculator
from asyncrl.envs.mcp import session as mcp_session
from asyncrl.envs.mcp.environment import McpToolEnvironment, SchemaParameters, check_schema
from asyncrl.envs.mcp.session import McpServer, McpSession, NoSession
from asyncrl.envs.mcp.sessions import Sessions, mcp_sessions

SERVER = str(Path(__file__).with_name("mcp_server.py"))
TASK = Task(id=TaskId("t"), prompt="Echo it.", data={"answer": "yes"})
IN_FLIGHT = 512


def stdio(*tools: str, command: tuple[str, ...] = (sys.executable, SERVER), **variables: str) -> McpServer:
    return McpServer(command=command, url="", tools=tools, variables=variables)


@asynccontextmanager
async def session_with(server: McpServer) -> AsyncIterator[McpSession]:
    session = McpSession(server)
    await session.start()
    try:
        yield session
    finally:
        await session.end()


def environment_of(sessions: Sessions) -> McpToolEnvironment:
    return McpToolEnvironment(sessions, lambda task, answer: float(answer == task.data["answer"]), "Be brief.", 10.0)


async def test_calls_results_and_deaths_of_one_server(caplog: pytest.LogCaptureFixture) -> None:
    """All that one process can show, since each takes a second to start."""
    caplog.set_level(logging.INFO, "asyncrl.envs.mcp")
    async with session_with(stdio(SECRET_OF_TESTS="hidden")) as session:
        echo = session.tools[0]
        assert (echo.name, echo.description, echo.parameters["required"]) == ("echo", "Say it again.", ["text"])
        async with asyncio.timeout(120):
            answers = await asyncio.gather(*(session.call("hold", {"until": IN_FLIGHT}) for _ in range(IN_FLIGHT)))
        assert answers == [str(IN_FLIGHT)] * IN_FLIGHT
        assert await session.call("variable", {"name": "SECRET_OF_TESTS"}) == "hidden"
        assert await session.call("picture", {}) == "[image, 4 characters of image/png: not shown]"
        with pytest.raises(ToolError, match="it went wrong"):
            await session.call("fail", {"text": "it went wrong"})
        with pytest.raises(ToolError, match="nowhere"):
            await session.call("nowhere", {})
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await session.call("echo", {"text": "late", "seconds": 60})
        assert await session.call("echo", {"text": "still here"}) == "still here"
        slow = asyncio.create_task(session.call("echo", {"text": "x", "seconds": 60}))
        with pytest.raises(EnvironmentLost, match="has ended") as lost:
            await session.call("die", {})
        with pytest.raises(EnvironmentLost) as other:
            await slow
        assert session.lost.is_set()
        with pytest.raises(EnvironmentLost) as after:
            await session.call("echo", {"text": "x"})
        assert lost.value.incident == other.value.incident == after.value.incident
    assert any("hello from the server" in record.getMessage() for record in caplog.records)


async def test_a_server_that_dies_is_started_again_and_episodes_share_it() -> None:
    async with mcp_sessions(stdio("note", "die", "echo"), shared=True, wait_s=120.0) as sessions:
        one, two = environment_of(sessions), environment_of(sessions)
        await one.ready()
        await two.ready()
        observation = await one.reset(TASK)
        assert observation.messages == (Message("system", "Be brief."), Message("user", "Echo it."))
        assert [tool.name for tool in observation.tools] == ["note", "die", "echo"]
        await two.reset(TASK)
        calls = (ToolCall("note", {"text": "a"}), ToolCall("note", {}), ToolCall("picture", {}))
        result = await one.step(Action("", calls))
        assert [each.outcome for each in result.calls] == [CallOutcome.OK, CallOutcome.MALFORMED, CallOutcome.MALFORMED]
        assert result.fault is Fault.MALFORMED_CALL
        assert "'text' is a required property; use note(text: string)" in result.observation.messages[1].content
        assert (await one.step(Action("yes", ()))).reward == 1.0
        with pytest.raises(EnvironmentLost):
            await two.step(Action("", (ToolCall("die", {}),)))
        await one.close()
        await two.close()
        again = environment_of(sessions)
        await again.ready()
        await again.reset(TASK)
        noted = await again.step(Action("", (ToolCall("note", {"text": "b"}),)))
        assert noted.observation.messages[0].content == "b"
        await again.close()
        ended, begun = sessions.remarks
        assert "has ended; its last words: " in ended
        assert "the 2 episodes that used it are issued again" in ended
        assert "was begun again" in begun


async def test_episodes_with_sessions_of_their_own_share_nothing() -> None:
    async with mcp_sessions(stdio("note"), shared=False, wait_s=120.0) as sessions:
        environments = [environment_of(sessions) for _ in range(2)]
        await asyncio.gather(*(each.ready() for each in environments))
        for each in environments:
            await each.reset(TASK)
            result = await each.step(Action("", (ToolCall("note", {"text": "a"}),)))
            assert result.observation.messages[0].content == "a"
            await each.close()


def free_port() -> int:
    """A port below those that the system gives to anybody who asks for any port, so that it is still free when it is needed."""
    while True:
        port = random.randrange(20_000, 30_000)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


async def test_streamable_http_takes_as_many_calls_and_comes_back() -> None:
    port = free_port()
    server = McpServer(command=(), url=f"http://127.0.0.1:{port}/mcp", tools=(), variables={})

    async def start() -> asyncio.subprocess.Process:
        arguments = (SERVER, "http", str(port))
        return await asyncio.create_subprocess_exec(sys.executable, *arguments, stderr=asyncio.subprocess.DEVNULL)

    process = await start()
    try:
        async with mcp_sessions(server, shared=True, wait_s=120.0) as sessions:
            session = await sessions.take()
            async with asyncio.timeout(120):
                answers = await asyncio.gather(*(session.call("hold", {"until": 128}) for _ in range(128)))
            assert len(answers) == 128
            process.kill()
            await process.wait()
            with pytest.raises(EnvironmentLost):
                await session.call("echo", {"text": "x"})
            process = await start()
            assert await (await sessions.take()).call("echo", {"text": "back"}) == "back"
        async with mcp_sessions(server, shared=False, wait_s=120.0) as sessions:
            session = await sessions.take()
            assert await session.call("echo", {"text": "mine"}) == "mine"
            sessions.give_back(session)
        assert [each for each in psutil.Process().net_connections() if each.raddr and each.raddr.port == port] == []
    finally:
        process.kill()
        await process.wait()


@pytest.mark.parametrize(
    ("server", "key", "problem"),
    [
        (stdio(command=("no-such-program",)), "command", "the program 'no-such-program' does not exist"),
        (stdio(command=(sys.executable, "-c", "raise SystemExit('wrong from the start')")), "command", "wrong from the start"),
        (stdio("ecko"), "tools", "has no tool 'ecko'; its tools are: echo, hold"),
        (McpServer((), "http://127.0.0.1:1/mcp", (), {}), "url", "cannot be reached, or does not speak MCP"),
    ],
)
async def test_what_is_wrong_with_a_server_is_said_at_launch(server: McpServer, key: str, problem: str) -> None:
    with pytest.raises(NoSession) as wrong:
        await McpSession(server).start()
    assert wrong.value.key == key
    assert problem in str(wrong.value)


async def test_a_server_that_says_nothing_is_waited_for_no_longer_than_its_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mcp_session, "START_S", 0.1)
    with pytest.raises(NoSession, match=r"did not answer the handshake of MCP within 0\.1 s"):
        await McpSession(stdio(command=(sys.executable, "-c", "import sys; sys.stdin.read()"))).start()


async def test_waiting_for_a_session_ends_with_the_reason() -> None:
    async with mcp_sessions(stdio(command=("no-such-program",)), shared=True, wait_s=0.5) as sessions:
        async with asyncio.timeout(120):
            while "does not exist" not in sessions._why:  # noqa: ASYNC110 - importing the SDK may take longer than 0.5 s
                await asyncio.sleep(0.01)
        with pytest.raises(EnvironmentUnreachable, match=r"waited 0\.5 s .*no-such-program' does not exist.*server_timeout_s"):
            await sessions.take()


def test_arguments_are_checked_by_the_servers_schema() -> None:
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {"path": {"type": "string"}, "lines": {"type": ["integer", "null"]}, "more": {"items": {"minimum": 0}}},
        "required": ["path"],
        "additionalProperties": False,
    }
    parameters = SchemaParameters(ToolSpec("read", "", schema))
    assert parameters.usage == "read(path: string, lines?: integer or null, more?: any)"
    assert parameters.convert({"path": "a", "lines": None}) == {"path": "a", "lines": None}
    for wrong, said in (
        ({}, "'path' is a required"),
        ({"path": 1}, r"1 is not of type 'string' at \['path'\]"),
        ({"path": "", "x": 1}, "x"),
    ):
        with pytest.raises(msgspec.ValidationError, match=said):
            parameters.convert(wrong)
    assert check_schema(ToolSpec("read", "", schema)) == ""
    assert "not of type object" in check_schema(ToolSpec("read", "", {}))
    assert "is wrong" in check_schema(ToolSpec("read", "", {"type": "object", "properties": 3}))


def test_launch_checks_the_server_the_reward_and_the_tasks() -> None:
    fine = McpConfig(command=(sys.executable, SERVER), reward="asyncrl.envs.mcp.calculator:reward", tools=("echo",))
    load_member(fine).check({})

    def refused(**keys: Any) -> str:
        with pytest.raises(RecipeError) as wrong:
            load_member(msgspec.structs.replace(fine, **keys)).check({})
        return str(wrong.value)

    assert refused(command=("no-such-program",)).startswith("environment.command: the program 'no-such-program' does not exist")
    assert refused(command=()).startswith("environment: of command and url neither is given")
    assert refused(url="http://127.0.0.1:1/mcp").startswith("environment: of command and url both are given")
    assert refused(command=(), url="127.0.0.1").startswith("environment.url: '127.0.0.1' is no HTTP address")
    assert refused(reward="nothing").startswith("environment.reward: there is no reward 'nothing'")
    assert refused(tasks="asyncrl.envs.mcp.calculator:reward").startswith(
        "environment.tasks: asyncrl.envs.mcp.calculator:reward cannot"
    )
    assert refused(secrets=("NOT_SET_IN_TESTS",)).startswith("environment: the environment variable NOT_SET_IN_TESTS is not set")
    with pytest.raises(RecipeError, match="makes no tasks of its own"):
        load_member(fine).make_tasks("train", 3, 0)
    maker = load_member(msgspec.structs.replace(fine, tasks="asyncrl.envs.mcp.calculator:make_tasks"))
    (task,) = maker.make_tasks("train", 1, 0)
    assert calculator.reward(task, f"it is {task.data['answer']}") == 1.0


async def test_the_calculators_server_looks_like_the_calculator() -> None:
    async with session_with(stdio(command=("python", "-m", "asyncrl.envs.mcp.calculator_server"))) as session:
        assert session.tools == (Calculator.tools["calculator"].spec,)
        assert await session.call("calculator", {"expression": "3*-4"}) == "-12"
        with pytest.raises(ToolError, match=r"^not one operation on two integers$"):
            await session.call("calculator", {"expression": "3*4+5"})
