"""MCP servers in processes of their own."""

import asyncio
import logging
import random
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing, suppress
from pathlib import Path
from typing import Any

import mcp
import mcp.types
import msgspec
import psutil
import pydantic
import pytest
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS

from asyncrl.core.errors import EnvironmentLost, EnvironmentUnreachable, RecipeError
from asyncrl.core.ids import TaskId
from asyncrl.core.messages import CallOutcome, Message, ToolCall, ToolSpec
from asyncrl.core.recipe.environment import McpEnvironmentConfig
from asyncrl.core.task import Task
from asyncrl.envs import Action, Fault, ToolError
from asyncrl.envs.builtin.calculator import Calculator
from asyncrl.envs.load import load_member
from asyncrl.envs.mcp import calculator, schema_checks, tool_list
from asyncrl.envs.mcp import session as mcp_session
from asyncrl.envs.mcp.http_answers import WAIT
from asyncrl.envs.mcp.member import McpTool, McpToolEnvironment
from asyncrl.envs.mcp.results import result_text
from asyncrl.envs.mcp.schema_checks import LARGEST_SCHEMA, SchemaChecks
from asyncrl.envs.mcp.session import McpServer, McpSession, NoSession
from asyncrl.envs.mcp.sessions import Sessions, mcp_sessions

SERVER = str(Path(__file__).with_name("mcp_server.py"))
TASK = Task(id=TaskId("t"), prompt="Echo it.", data={"answer": "yes"})
IN_FLIGHT = 512
MALFORMED = pydantic.ValidationError.from_exception_data("ListToolsResult", [])


def stdio(*tools: str, command: tuple[str, ...] = (sys.executable, SERVER), **variables: str) -> McpServer:
    return McpServer(command=command, url="", tools=tools, variables=variables)


@asynccontextmanager
async def session_with(server: McpServer) -> AsyncIterator[McpSession]:
    with closing(SchemaChecks(server.name)) as checks:
        session = McpSession(server, checks)
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


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_a_session_ends_when_tools_change_that_it_has_shown(
    mode: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Of a server's two ways to tell of it, the client asks for the newest protocol's, and hears the other."""
    caplog.set_level(logging.INFO, "asyncrl.envs.mcp")
    speaking = mcp.Client
    monkeypatch.setattr("mcp.Client", lambda transport, **settings: speaking(transport, **{**settings, "mode": mode}))
    async with session_with(stdio("echo", "change")) as session, asyncio.timeout(120):
        assert (session._client.protocol_version in HANDSHAKE_PROTOCOL_VERSIONS) == (mode == "legacy")
        assert await session.call("change", {"drop": "note", "add": "further"}) == "changed"
        assert await session.call("echo", {"text": "still here"}) == "still here"
        with suppress(EnvironmentLost):  # it may be over before the answer has come
            await session.call("change", {"drop": "echo", "add": ""})
        await session.lost.wait()
        with pytest.raises(
            EnvironmentLost, match="has changed the tools 'echo'; name those that stay the same under environment"
        ):
            await session.call("echo", {"text": "x"})
    assert "not shown" not in caplog.text
    async with session_with(stdio()) as session, asyncio.timeout(120):
        await session.call("change", {"drop": "", "add": "further"})
        while "has tools that running episodes are not shown: further" not in caplog.text:  # noqa: ASYNC110 - the log tells
            await asyncio.sleep(0.01)
        assert not session.lost.is_set()


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_tools_that_stay_the_same_are_looked_at_once_however_often_a_change_is_told(
    mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    speaking, listing = mcp.Client, tool_list.all_tools
    looked: list[asyncio.Event] = [asyncio.Event()]

    async def looking(client: mcp.Client) -> Any:
        looked[-1].set()
        looked.append(asyncio.Event())
        return await listing(client)

    monkeypatch.setattr("mcp.Client", lambda transport, **settings: speaking(transport, **{**settings, "mode": mode}))
    monkeypatch.setattr(tool_list, "all_tools", looking)
    monkeypatch.setattr(tool_list, "COMPARE_AGAIN_S", 1e6)
    async with session_with(stdio()) as session, asyncio.timeout(120):
        assert await session.call("change", {"drop": "", "add": "", "times": 300}) == "changed"
        await looked[0].wait()
        assert await session.call("echo", {"text": "still here"}) == "still here"
    assert len(looked) == 2


@pytest.mark.parametrize(
    ("first", "changed"),
    [
        (mcp.MCPError(-32603, "busy", {WAIT: 0.0}), ["echo"]),
        (mcp.MCPError(-32603, "no"), []),
        (tool_list.TooManyPages("too many"), []),
        (MALFORMED, []),
    ],
)
async def test_tools_that_are_not_listed_again_have_not_changed(
    first: Exception, changed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    answers: list[Any] = [first, ()]

    async def listing(_: object) -> Any:
        if isinstance(answer := answers.pop(0), Exception):
            raise answer
        return answer

    monkeypatch.setattr(tool_list, "all_tools", listing)
    used = [ToolSpec("echo", "", {})]
    assert await tool_list.changed_tools(None, used, "x", all_are_used=True) == changed  # type: ignore[arg-type]


TEXT = {"type": "object", "properties": {"text": {"type": "string"}, "description": {"type": "string"}}}


def described(schema: dict[str, Any], text: str) -> dict[str, Any]:
    return {**schema, "properties": {name: each | {"description": text} for name, each in schema["properties"].items()}}


@pytest.mark.parametrize(
    ("listed", "changed"),
    [
        (ToolSpec("echo", "It is 12:01.", TEXT), []),
        (ToolSpec("echo", "It is 12:00.", described(TEXT, "a text, at 12:01")), []),
        (ToolSpec("echo", "It is 12:00.", TEXT | {"required": ["text"]}), ["echo"]),
        (ToolSpec("echo", "It is 12:00.", {"type": "object", "properties": {"text": TEXT["properties"]["text"]}}), ["echo"]),
        (ToolSpec("echoes", "It is 12:00.", TEXT), ["echo"]),
    ],
)
async def test_a_tool_that_is_only_described_otherwise_ends_no_session(
    listed: ToolSpec, changed: list[str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def listing(_: object) -> Any:
        return (listed,)

    caplog.set_level(logging.INFO, "asyncrl.envs.mcp")
    monkeypatch.setattr(tool_list, "all_tools", listing)
    used = [ToolSpec("echo", "It is 12:00.", TEXT)]
    assert await tool_list.changed_tools(None, used, "x", all_are_used=True) == changed  # type: ignore[arg-type]
    assert ("x describes tools otherwise than running episodes are shown: echo" in caplog.text) == (not changed)


async def test_a_session_is_begun_no_sooner_than_the_server_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []

    async def refused(self: McpSession) -> None:
        if len(waited) < 2:
            raise NoSession("url", "it is busy", "wait", wait_s=(7.0, 1e9)[len(waited)])

    async def sleep(seconds: float) -> None:
        waited.append(seconds)

    sessions = Sessions(stdio(), shared=False, wait_s=100.0)
    with monkeypatch.context() as patched:
        patched.setattr(McpSession, "start", refused)
        patched.setattr(asyncio, "sleep", sleep)
        await sessions.take()
    await sessions.end()
    assert waited == [7.0, 100.0]


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
        apart = msgspec.structs.replace(server, keeps_apart=True)
        async with mcp_sessions(apart, shared=False, wait_s=120.0) as sessions:
            session = await sessions.take()
            assert await session.call("echo", {"text": "mine"}) == "mine"
            process.kill()
            await process.wait()
            process = await start()
            sessions.give_back(await sessions.take())  # so it is up again
            with pytest.raises(EnvironmentLost):  # what it kept for the session is gone
                await session.call("echo", {"text": "mine"})
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
        (
            stdio(command=(sys.executable, str(Path(SERVER).with_name("hostile_mcp_server.py")), "endless")),
            "tools",
            "lists its tools on more than 100 pages; correct the server",
        ),
        (stdio("ecko"), "tools", "has no tool 'ecko'; its tools are: echo, hold"),
        (McpServer((), "http://127.0.0.1:1/mcp", (), {}), "url", "cannot be reached, or does not speak MCP"),
    ],
)
async def test_what_is_wrong_with_a_server_is_said_at_launch(server: McpServer, key: str, problem: str) -> None:
    with pytest.raises(NoSession) as wrong:
        async with session_with(server):
            pass
    assert wrong.value.key == key
    assert problem in str(wrong.value)


async def test_a_server_that_says_nothing_is_waited_for_no_longer_than_its_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mcp_session, "START_S", 0.1)
    with pytest.raises(NoSession, match=r"did not answer the handshake of MCP within 0\.1 s"):
        async with session_with(stdio(command=(sys.executable, "-c", "import sys; sys.stdin.read()"))):
            pass


async def test_waiting_for_a_session_ends_with_the_reason() -> None:
    async with mcp_sessions(stdio(command=("no-such-program",)), shared=True, wait_s=0.5) as sessions:
        async with asyncio.timeout(120):
            while "does not exist" not in sessions._why:  # noqa: ASYNC110 - importing the SDK may take longer than 0.5 s
                await asyncio.sleep(0.01)
        with pytest.raises(EnvironmentUnreachable, match=r"waited 0\.5 s .*no-such-program' does not exist.*server_timeout_s"):
            await sessions.take()


@pytest.fixture
async def checks() -> AsyncIterator[SchemaChecks]:
    with closing(SchemaChecks("the tests")) as made:
        yield made


async def test_arguments_are_checked_by_the_servers_schema(checks: SchemaChecks) -> None:
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {"path": {"type": "string"}, "lines": {"type": ["integer", "null"]}, "more": {"items": {"minimum": 0}}},
        "required": ["path"],
        "additionalProperties": False,
    }
    spec = ToolSpec("read", "", schema)
    read = McpTool(spec, checks)
    assert read.parameters.usage == "read(path: string, lines?: integer or null, more?: any)"
    for fits in ({"path": "a", "lines": None}, {"path": "\ud800", "lines": 10**30}):
        assert await read.converted(fits) == fits
    for wrong, said in (
        ({}, "'path' is a required"),
        ({"path": 1}, r"1 is not of type 'string' at \['path'\]"),
        ({"path": "", "x": 1}, "x"),
    ):
        with pytest.raises(msgspec.ValidationError, match=said):
            await read.converted(wrong)
    assert await checks.wrong_with(spec) == ""


def nested(levels: int) -> dict[str, Any]:
    return {"properties": {"x": nested(levels - 1)}} if levels else {}


TREE = {"type": "object", "properties": {"below": {"type": "array", "items": {"$ref": "#"}}}}
DOUBLED = {f"d{level}": {"allOf": [{"$ref": f"#/$defs/d{level + 1}"}] * 2} for level in range(30)} | {"d30": {}}


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({}, "is not of type object"),
        ({"properties": 3}, "is wrong"),
        ({"$schema": {}}, "cannot be checked"),
        (
            {"properties": {"x": {"$ref": "http://127.0.0.1:1/s.json"}}},
            "refers to 'http://127.0.0.1:1/s.json', which it does not",
        ),
        ({"properties": {"x": {"$ref": "file:///etc/passwd"}}}, "refers to 'file:///etc/passwd', which it does not hold"),
        ({"$dynamicRef": "https://127.0.0.1:1/#x"}, "refers to 'https://127.0.0.1:1/#x', which it does not hold"),
        ({"$id": "http://127.0.0.1:1/a", "properties": {"x": {"$ref": "b"}}}, "refers to 'b', which it does not hold"),
        ({"properties": {"x": {"$ref": "#/$defs/nowhere"}}}, "refers to '#/$defs/nowhere', which it does not hold"),
        ({"$ref": "#"}, "go round in a circle"),
        ({"$defs": {"a": {"anyOf": [{"$ref": "#/$defs/b"}]}, "b": {"not": {"$ref": "#/$defs/a"}}}}, "go round in a circle"),
        ({"$defs": DOUBLED, "properties": {"x": {"$ref": "#/$defs/d0"}}}, "by more than 10,000 subschemas"),
        ({"properties": {"x": {"pattern": "("}}}, "is wrong: '(' is not a 'regex'"),
        ({"patternProperties": {"(": {}}}, "is wrong: '(' is not a 'regex'"),
        (nested(60), "has more than 100 levels"),
        ({"description": "x" * LARGEST_SCHEMA}, "bytes, and may have 262,144"),
    ],
    ids=lambda value: str(value)[:40],
)
async def test_schemas_that_are_not_in_order_are_named(schema: dict[str, Any], said: str, checks: SchemaChecks) -> None:
    whole = {"type": "object"} | schema if schema else schema
    wrong = await checks.wrong_with(ToolSpec("read", "", whole))
    assert wrong.startswith("the schema of tool read ")
    assert said in wrong


@pytest.mark.parametrize(
    "schema",
    [
        TREE,
        {"$id": "http://127.0.0.1:1/a", "properties": {"x": {"$ref": "a#/$defs/b"}}, "$defs": {"b": {"type": "string"}}},
        {"properties": {"x": {"$ref": "#named"}}, "$defs": {"b": {"$anchor": "named", "type": "string"}}},
        {
            "$schema": "http://json-schema.org/draft-07/schema#",
            "definitions": {"b": {}},
            "properties": {"x": {"$ref": "#/definitions/b"}},
        },
        {"properties": {"schema": {"$ref": "https://json-schema.org/draft/2020-12/schema"}}},
        nested(40),
    ],
    ids=["tree", "own id", "anchor", "draft 7", "a schema as an argument", "deep"],
)
async def test_schemas_that_are_in_order_pass(schema: dict[str, Any], checks: SchemaChecks) -> None:
    spec = ToolSpec("read", "", {"type": "object"} | schema)
    assert await checks.wrong_with(spec) == ""
    assert await McpTool(spec, checks).converted({}) == {}


async def test_values_that_would_be_checked_for_ever_are_malformed_and_hold_nobody_up(
    checks: SchemaChecks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schema_checks, "CHECK_S", 1.0)
    bomb = ToolSpec("bomb", "", {"type": "object", "properties": {"x": {"pattern": "^(a+)+$"}}})
    forked = {"$ref": "#/$defs/t"}
    twice = ToolSpec(
        "twice", "", {"type": "object", "properties": {"x": forked}, "$defs": {"t": {"items": {"allOf": [forked, forked, {}]}}}}
    )
    deep: list[Any] = []
    for _ in range(60):
        deep = [deep]
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(0.02)
            ticks += 1

    ticking = asyncio.create_task(tick())
    async with asyncio.timeout(60):
        for spec, value in ((bomb, "a" * 60 + "!"), (twice, deep)):
            assert await checks.wrong_with(spec) == ""
            before = ticks
            with pytest.raises(msgspec.ValidationError, match="took longer than 1 s"):
                await McpTool(spec, checks).converted({"x": value})
            assert ticks >= before + 5, "the event loop goes on"
            assert await McpTool(spec, checks).converted({"x": "a"}) == {"x": "a"}
    ticking.cancel()
    for _ in range(100_000):
        deep = [deep]
    tree = McpTool(ToolSpec("tree", "", TREE), checks)
    with pytest.raises(msgspec.ValidationError, match="cannot be"):
        await tree.converted({"below": deep})


async def test_a_schema_that_refers_elsewhere_is_never_followed(checks: SchemaChecks) -> None:
    asked: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readline())
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/schema.json"
        spec = ToolSpec("read", "", {"type": "object", "properties": {"x": {"$ref": url}}})
        assert "nothing is fetched" in await checks.wrong_with(spec)
        with pytest.raises(msgspec.ValidationError, match="cannot be checked"):
            await McpTool(spec, checks).converted({"x": 1})
    assert asked == []


async def test_a_server_with_hostile_schemas_is_refused_when_its_session_begins_and_its_results_pass_unchecked() -> None:
    command = (sys.executable, str(Path(SERVER).with_name("hostile_mcp_server.py")))
    with pytest.raises(NoSession, match=r"the schema of tool remote refers to 'http://127.0.0.1:1/s.json'.*leave this tool out"):
        async with session_with(stdio(command=command)):
            pass
    refused = McpEnvironmentConfig(command=command, reward="asyncrl.envs.mcp.calculator:reward")
    with pytest.raises(RecipeError, match=r"environment\.tools: the schema of tool remote refers to"):
        load_member(refused).check({})
    async with session_with(stdio("bomb", command=command)) as session, asyncio.timeout(30):
        assert await session.call("bomb", {}) == "a" * 60 + "!\n" + '{"x":"' + "a" * 60 + '!"}'


@pytest.mark.parametrize(
    ("texts", "structured", "shown"),
    [
        (["5 files"], None, "5 files"),
        ([], {"count": 5}, '{"count":5}'),
        (["5 files"], {"count": 5}, '5 files\n{"count":5}'),
        (['{\n  "count": 5\n}'], {"count": 5}, '{\n  "count": 5\n}'),
        (["5"], {"result": 5}, "5"),
        (["five"], {"result": "five"}, "five"),
        (["a", "b"], {"result": ["a", "b"]}, "a\nb"),
        (["1", '{"b": 2}'], {"result": [1, {"b": 2}]}, '1\n{"b": 2}'),
        (["a"], {"result": ["a", "b"]}, 'a\n{"result":["a","b"]}'),
        (["x" * (1 << 20), "y"], {"count": 5}, "x" * (1 << 20) + "\ny"),
    ],
)
def test_structured_content_is_shown_where_the_text_does_not_say_it(texts: list[str], structured: Any, shown: str) -> None:
    content: list[mcp.types.ContentBlock] = [mcp.types.TextContent(text=text) for text in texts]
    assert result_text(mcp.types.CallToolResult(content=content, structured_content=structured)) == shown


def test_launch_checks_the_server_the_reward_and_the_tasks() -> None:
    fine = McpEnvironmentConfig(command=(sys.executable, SERVER), reward="asyncrl.envs.mcp.calculator:reward", tools=("echo",))
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
