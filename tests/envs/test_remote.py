"""Environments over a real socket: server and clients in one process."""

import asyncio
import os
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp
import aiohttp.web
import msgspec
import pytest
from served_environments import Notes

from asyncrl.core.errors import EnvironmentBroken, EnvironmentLost, EnvironmentUnreachable, RecipeError
from asyncrl.core.ids import TaskId
from asyncrl.core.messages import CallOutcome, MalformedCall, Message, ToolCall
from asyncrl.core.network import listener
from asyncrl.core.recipe.environment import RemoteEnvironmentConfig
from asyncrl.core.task import Task
from asyncrl.envs import Action, Fault
from asyncrl.envs.builtin.calculator import Calculator
from asyncrl.envs.load import load_member
from asyncrl.envs.remote import protocol
from asyncrl.envs.remote.connection import Connection, NotConnected
from asyncrl.envs.remote.environment import RemoteEnvironment
from asyncrl.envs.remote.pool import ServerPool, Servers, serving
from asyncrl.envs.remote.served_environments import Served, ServedEnvironments
from asyncrl.envs.remote.server import EnvironmentServer
from asyncrl.run.nodes.certificates import make_keys

TOKEN = "a-token-of-the-tests"
TASK = Task(id=TaskId("t"), prompt="Note it.", data={"answer": "yes"})


@asynccontextmanager
async def served(
    name: str = "served_environments:Notes", port: int = 0, **options: Any
) -> AsyncIterator[tuple[EnvironmentServer, str]]:
    server = EnvironmentServer(ServedEnvironments(Served(name, options), "asyncrl test"), TOKEN)
    port = await server.start("127.0.0.1", port)
    try:
        yield server, f"ws://127.0.0.1:{port}"
    finally:
        await server.close()


def servers(*urls: str, wait_s: float = 60.0, **options: Any) -> Servers:
    return Servers(urls, options, tool_timeout_s=60.0, episode_timeout_s=120.0, wait_s=wait_s, client="asyncrl test")


@asynccontextmanager
async def connected(url: str, token: str = TOKEN) -> AsyncIterator[Connection]:
    async with aiohttp.ClientSession() as session:
        connection = await Connection.open(url, token, "asyncrl test", session)
        try:
            yield connection
        finally:
            await connection.close()


async def begun(pool: ServerPool, task: Task = TASK) -> RemoteEnvironment:
    environment = RemoteEnvironment(pool)
    await environment.ready()
    await environment.reset(task)
    return environment


async def all_up(pool: ServerPool, count: int) -> None:
    async with asyncio.timeout(60), pool.changed:
        await pool.changed.wait_for(lambda: len(pool.up) == count)


def call(name: str, **arguments: Any) -> Action:
    return Action("", (ToolCall(name, arguments),))


@pytest.fixture(autouse=True)
def _fresh_notes() -> None:
    Notes.open, Notes.closed, Notes.begun, Notes.cancelled, Notes.unblocked = [], 0, 0, 0, threading.Event()


async def test_an_episode_is_played_as_if_it_were_here() -> None:
    async with served(prefix="server ") as (_, url), serving(servers(url, prefix="- "), TOKEN) as pool:
        environment = RemoteEnvironment(pool)
        await environment.ready()
        observation = await environment.reset(TASK)
        assert observation.messages == (Message("system", "Take notes."), Message("user", "Note it."))
        assert environment.scores_answers, "or a reward that is late on the server would end the episode with 0"
        assert observation.tools == tuple(tool.spec for tool in Notes.tools.values())
        huge = 10**30
        bad = MalformedCall("{", "not JSON")
        result = await environment.step(Action("hm", (ToolCall("note", {"text": "one"}), bad, ToolCall("note", {"text": huge}))))
        assert result.observation.messages[0] == Message("tool", "- one")
        assert [record.outcome for record in result.calls] == [CallOutcome.OK, CallOutcome.MALFORMED, CallOutcome.MALFORMED]
        assert result.fault is Fault.MALFORMED_CALL
        refused = await environment.step(call("note", text="forbidden"))
        assert (refused.fault, refused.observation.messages[0].content) == (Fault.TOOL_ERROR, "error: no such note")
        end = await environment.step(Action("yes", ()))
        assert (end.reward, end.done) == (1.0, True)
        await environment.close()
        assert Notes.closed == 1


async def test_tasks_are_made_on_the_server_in_several_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "TASKS_IN_A_MESSAGE", 7)
    async with served("calculator") as (_, url), connected(url) as connection:
        tasks = await connection.make_tasks({"max_operations": 2}, "train", 30, 5, 20.0)
        assert tasks == list(Calculator.make_tasks("train", 30, 5, max_operations=2))
        with pytest.raises(RecipeError, match=r"environment\.options\.max_operation: there is no such option.*max_operations"):
            await connection.describe({"max_operation": 2}, 20.0)
        with pytest.raises(RecipeError, match="makes no tasks of its own"):
            async with served() as (_, other), connected(other) as without:
                await without.make_tasks({}, "train", 1, 0, 20.0)


async def test_who_has_another_token_or_no_server_is_told_what_to_do() -> None:
    async with served() as (_, url):
        with pytest.raises(NotConnected, match="refuses the token; give both sides the same one"):
            async with connected(url, "wrong"):
                pass
    with pytest.raises(NotConnected, match=r"cannot be reached.*asyncrl env serve"):
        async with connected(url):
            pass
    with pytest.raises(NotConnected, match="cannot be reached"):
        async with connected("not a url"):
            pass


async def test_half_sent_requests_keep_nobody_out_and_fill_no_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with served() as (_, url), connected(url):
        host, port = url.removeprefix("ws://").split(":")
        half = [await asyncio.open_connection(host, int(port)) for _ in range(300)]
        for _, writer in half:
            writer.write(b"GET / HTTP/1.1\r\nHost: a\r\nX-Slow: ")
        for reader, _ in half[: 300 - listener.MOST_NEWCOMERS]:
            async with asyncio.timeout(60):
                assert await reader.read() == b"", "it is turned away long before its time is over"
        async with connected(url) as connection:
            await connection.describe({}, 20.0)
        monkeypatch.setattr(listener, "INTRODUCTION_S", 0.2)  # of those who connect from now on
        reader, writer = await asyncio.open_connection(host, int(port))
        async with asyncio.timeout(60):
            with suppress(OSError):
                while not reader.at_eof():  # a byte now and then buys no time
                    writer.write(b"G")
                    await writer.drain()
                    with suppress(TimeoutError):
                        await asyncio.wait_for(reader.read(1), 0.05)
        for request in (b"GET / HTTP/1.1\r\n\r\n", b"POST /x HTTP/1.1\r\nContent-Length: 9\r\n\r\n", b"\x16\x03\x01\xff\r\n\r\n"):
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(request)
            async with asyncio.timeout(60):
                assert (await reader.read()).startswith((b"HTTP/1.1 401", b"HTTP/1.1 400", b"HTTP/1.0 400"))
            writer.close()
        for _, writer in half:
            writer.close()
    told = [record.getMessage() for record in caplog.records if record.name.startswith("asyncrl.envs.remote.server")]
    assert len(told) == 2
    assert "turned away since the last such line" in told[1]


@pytest.mark.skipif(sys.platform != "linux", reason="limits of files are those of Linux")
def test_a_server_that_has_no_files_left_says_so_once_and_goes_on() -> None:
    """Unknown clients take all the files that its process may have open; when they are gone, it lets clients in as before."""
    serve = "from asyncrl.cli.main import main; main(['env', 'serve', 'calculator', '--port', '0'])"
    limited = f"import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100)); {serve}"
    server = subprocess.Popen(
        [sys.executable, "-c", limited],
        env={**os.environ, "ASYNCRL_ENV_TOKEN": TOKEN},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert server.stdout is not None
        url = next(word for word in server.stdout.readline().split() if word.startswith("ws://")).rstrip(";")
        host, port = url.removeprefix("ws://").split(":")
        with ExitStack() as unknown_clients:
            for _ in range(150):
                unknown_clients.enter_context(socket.create_connection((host, int(port)), 60))
            assert server.stderr is not None
            said = [server.stderr.readline()]
            while "accept" not in said[-1]:
                said.append(server.stderr.readline())

        async def describe() -> None:
            async with connected(url) as connection:
                await connection.describe({}, 20.0)

        asyncio.run(describe())
    finally:
        server.terminate()
        said += server.communicate(timeout=60)[1].splitlines()
    assert sum("cannot accept connections for a while" in line for line in said) == 1
    assert not any("Traceback" in line for line in said)
    assert len(said) < 10


async def test_a_server_that_answers_something_else_is_left() -> None:
    left = asyncio.Event()

    async def talk(request: aiohttp.web.Request) -> aiohttp.web.WebSocketResponse:
        socket = aiohttp.web.WebSocketResponse()
        await socket.prepare(request)
        await socket.receive()
        await socket.send_str("good morning")
        await socket.receive()
        left.set()
        return socket

    application = aiohttp.web.Application()
    application.router.add_get("/", talk)
    runner = aiohttp.web.AppRunner(application)
    await runner.setup()
    await aiohttp.web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        async with aiohttp.ClientSession() as session:
            with pytest.raises(NotConnected, match="answered the hello with TEXT"):
                await Connection.open(f"ws://127.0.0.1:{runner.addresses[0][1]}", TOKEN, "asyncrl test", session)
            async with asyncio.timeout(60):
                await left.wait()
    finally:
        await runner.cleanup()


@pytest.mark.parametrize(
    ("status", "said", "final"),
    [
        (404, "is no server of environments: it answers with HTTP status 404; name the host and port", True),
        (429, "takes no connection now: it answers with HTTP status 429; see whether the server runs", False),
        (503, "takes no connection now: it answers with HTTP status 503; see whether the server runs", False),
    ],
)
async def test_what_a_proxy_answers_is_told(status: int, said: str, final: bool) -> None:
    async def refuse(_: aiohttp.web.Request) -> aiohttp.web.Response:
        return aiohttp.web.Response(status=status, text="<html>")

    application = aiohttp.web.Application()
    application.router.add_get("/", refuse)
    runner = aiohttp.web.AppRunner(application)
    await runner.setup()
    await aiohttp.web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        with pytest.raises(NotConnected, match=said) as refused:
            async with connected(f"ws://127.0.0.1:{runner.addresses[0][1]}"):
                pass
        assert refused.value.final is final
    finally:
        await runner.cleanup()


async def test_a_server_that_reads_nothing_is_given_up_at_the_requests_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("asyncrl.envs.remote.connection.SLACK_S", 0.1)
    ends = asyncio.Event()

    async def listen(request: aiohttp.web.Request) -> aiohttp.web.WebSocketResponse:
        socket = aiohttp.web.WebSocketResponse(autoping=False, max_msg_size=protocol.LARGEST_MESSAGE)
        await socket.prepare(request)
        await socket.receive()
        await socket.send_bytes(protocol.encoder.encode(protocol.Welcome(protocol.PROTOCOL, "notes", "deaf 1", "s")))
        assert request.transport is not None
        request.transport.pause_reading()
        await ends.wait()
        request.transport.resume_reading()
        return socket

    application = aiohttp.web.Application()
    application.router.add_get("/", listen)
    runner = aiohttp.web.AppRunner(application)
    await runner.setup()
    await aiohttp.web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        async with connected(f"ws://127.0.0.1:{runner.addresses[0][1]}") as connection, asyncio.timeout(60):
            with pytest.raises(EnvironmentLost, match=r"it did not answer a describe within 0\.2 s"):
                await connection.describe({"text": "x" * (32 << 20)}, 0.1)
            ends.set()
    finally:
        await runner.cleanup()


async def test_a_server_is_stopped_at_once_while_it_sets_up_what_episodes_share() -> None:
    async with served("served_environments:NeverReady") as (server, url), connected(url) as connection:
        reset = protocol.Reset(id=0, deadline_s=60.0, episode=0, task=TASK, options={}, tool_timeout_s=1.0)
        asking = asyncio.create_task(connection.reset(lambda number: reset))
        async with asyncio.timeout(60):
            while not server.environments._made:  # noqa: ASYNC110 - another thread's event loop puts it in
                await asyncio.sleep(0.01)
            await server.close()
            with pytest.raises(EnvironmentLost):
                await asking


async def test_another_version_is_refused_and_both_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    async with served() as (_, url), aiohttp.ClientSession() as session:
        headers = {"Authorization": f"Bearer {TOKEN}"}
        async with session.ws_connect(url, headers=headers) as socket:
            await socket.send_bytes(msgspec.msgpack.encode({"type": "hello", "protocol": 2, "client": "asyncrl 9"}))
            answer = msgspec.msgpack.decode((await socket.receive()).data)
            assert answer["type"] == "refused"
            assert "asyncrl test speaks protocol 1, and asyncrl 9 speaks 2" in answer["problem"]
            assert (await socket.receive()).data == protocol.REFUSED_CODE


async def test_a_broken_environment_is_no_reward_and_names_its_line() -> None:
    async with served() as (_, url), serving(servers(url), TOKEN) as pool:
        environment = await begun(pool)
        with pytest.raises(EnvironmentBroken, match="KeyError: 'broken on purpose'") as broken:
            await environment.step(Action("break", ()))
        assert broken.value.raised is not None
        assert (broken.value.raised.method, broken.value.raised.file.endswith("served_environments.py")) == ("reward", True)
        await environment.close()
    async with served("served_environments:Wrong") as (_, url), serving(servers(url), TOKEN) as pool:
        with pytest.raises(EnvironmentBroken, match="must return a StepResult, not 'nothing'"):
            await (await begun(pool)).step(Action("", ()))


async def test_a_lost_server_is_no_fault_of_the_task_and_is_connected_again() -> None:
    async with served() as (server, url), serving(servers(url), TOKEN) as pool:
        environment, closing = await begun(pool), await begun(pool)
        playing = asyncio.create_task(environment.step(call("note", text="x", seconds=60)))
        await asyncio.sleep(0)
        pool.up[url]._end("it did not answer a close")
        await closing.close()
        await server.close()
        with pytest.raises(EnvironmentLost, match="is gone") as lost:
            await playing
        with pytest.raises(EnvironmentLost) as again:
            await environment.step(Action("yes", ()))
        assert lost.value.incident == again.value.incident
        await environment.close()
        async with served(port=int(url.rpartition(":")[2])):
            after = await begun(pool)
            assert (await after.step(Action("yes", ()))).reward == 1.0
            await after.close()
        gone, back = pool.remarks[:2]
        assert "its 2 episodes are issued again, and new episodes wait" in gone
        assert "answers again" in back


async def test_a_client_that_is_gone_when_a_stopped_server_goes_on_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    async with served() as (server, url):
        host, _, port = url.removeprefix("ws://").partition(":")
        hello = (
            f"GET / HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {TOKEN}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
            "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
        )
        for _ in range(20):  # the server's event loop is this one, so it does nothing meanwhile
            with socket.create_connection((host, int(port)), 60) as client:
                client.sendall(hello.encode())
        async with connected(url):
            assert server.episodes == 0
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == []


async def test_a_certificate_of_an_unknown_authority_is_told_as_such(tmp_path: Path) -> None:
    keys, chain = make_keys(), tmp_path / "chain.pem"
    chain.write_bytes(keys.key + keys.certificate)
    encrypted = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    encrypted.load_cert_chain(chain)
    async with await asyncio.start_server(lambda *_: None, "127.0.0.1", 0, ssl=encrypted) as server:
        url = f"wss://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        with pytest.raises(
            NotConnected, match=r"certificate that is not accepted: .*; have it show one that is valid"
        ) as refused:
            async with connected(url):
                pass
    assert refused.value.final


async def test_waiting_for_a_server_ends_with_the_reason() -> None:
    async with served() as (_, url):
        pass
    async with serving(servers(url, wait_s=0.05), TOKEN) as pool:
        with pytest.raises(EnvironmentUnreachable, match=r"waited 0.05 s for any of ws.*server_timeout_s"):
            await RemoteEnvironment(pool).ready()


async def test_load_is_spread_and_one_lost_server_takes_only_its_own_episodes() -> None:
    async with served() as (first, one), served() as (second, two), serving(servers(one, two), TOKEN) as pool:
        await all_up(pool, 2)
        environments = [await begun(pool) for _ in range(8)]
        assert (first.episodes, second.episodes) == (4, 4)
        await first.close()
        outcomes = await asyncio.gather(*(each.step(Action("yes", ())) for each in environments), return_exceptions=True)
        assert sum(isinstance(each, EnvironmentLost) for each in outcomes) == 4
        assert len({each.incident for each in outcomes if isinstance(each, EnvironmentLost)}) == 1
        assert (await (await begun(pool)).step(Action("yes", ()))).reward == 1.0
        for each in environments:
            await each.close()


async def test_what_the_client_stops_waiting_for_is_cancelled_on_the_server() -> None:
    async with served() as (_, url), serving(servers(url), TOKEN) as pool:
        environment = await begun(pool)
        playing = asyncio.create_task(environment.step(call("note", text="x", seconds=60)))
        async with asyncio.timeout(60):
            while not Notes.begun:  # noqa: ASYNC110 - in the server's other event loop
                await asyncio.sleep(0.01)
        playing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await playing
        await environment.close()
        assert (Notes.cancelled, Notes.closed, Notes.open) == (1, 1, [])


async def test_episodes_of_a_client_that_vanishes_are_closed() -> None:
    async with served() as (server, url):
        async with serving(servers(url), TOKEN) as pool:
            for _ in range(3):
                await begun(pool)
            assert server.episodes == 3
        async with asyncio.timeout(60):
            while Notes.open:  # noqa: ASYNC110 - closing happens in the server's other event loop
                await asyncio.sleep(0.01)
        assert Notes.closed == 3


async def test_a_blocked_environment_is_late_and_the_connection_lives() -> None:
    async with served() as (_, url), connected(url) as connection:
        pool = ServerPool(servers(url), TOKEN)
        environment = RemoteEnvironment(pool)
        environment.use(connection)
        await environment.reset(TASK)
        try:
            with pytest.raises(EnvironmentBroken, match=r"step took longer than 0\.2 s"):
                await connection.step(
                    lambda number: protocol.Step(
                        id=number,
                        deadline_s=0.2,
                        episode=environment.episode,
                        content="",
                        calls=protocol.wire_calls(call("block")),
                    )
                )
            await connection.describe({}, 60.0)
            assert not connection.lost.is_set()
        finally:
            Notes.unblocked.set()


async def test_what_is_too_large_or_no_message_costs_only_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    async with served() as (_, url), serving(servers(url), TOKEN) as pool:
        environment = await begun(pool)
        monkeypatch.setattr(protocol, "LARGEST_MESSAGE", 1000)
        with pytest.raises(EnvironmentBroken, match="a message may have 1,000"):
            await environment.step(call("note", text="x" * 2000))
        monkeypatch.setattr(protocol, "LARGEST_MESSAGE", 10_000)
        await environment.step(call("note", text="x" * 900))
        monkeypatch.setattr(protocol, "LARGEST_MESSAGE", 1000)
        with pytest.raises(EnvironmentBroken, match="the answer has"):
            await environment.step(call("note", text="x" * 500))
        await environment.close()
        async with aiohttp.ClientSession() as session:
            for sent in (b"\xc1", msgspec.msgpack.encode({"type": "close"}), b""):
                async with session.ws_connect(url, headers={"Authorization": f"Bearer {TOKEN}"}) as socket:
                    await socket.send_bytes(sent)
                    assert (await socket.receive()).data == aiohttp.WSCloseCode.PROTOCOL_ERROR
        assert (await (await begun(pool)).step(Action("yes", ()))).done


async def test_a_client_written_from_the_document_plays_an_episode() -> None:
    """What docs/how-to/remote-environments.md shows, with msgpack and a WebSocket only."""
    async with served() as (_, url), aiohttp.ClientSession() as session:
        headers = {"Authorization": f"Bearer {TOKEN}"}
        async with session.ws_connect(url, headers=headers) as socket:

            async def ask(**message: Any) -> dict[str, Any]:
                await socket.send_bytes(msgspec.msgpack.encode(message))
                answer: dict[str, Any] = msgspec.msgpack.decode((await socket.receive()).data)
                return answer

            welcome = await ask(type="hello", protocol=1, client="by hand")
            assert (welcome["type"], welcome["protocol"], welcome["environment"]) == ("welcome", 1, "served_environments:Notes")
            task = {"id": "t", "prompt": "Note it.", "data": {"answer": "yes"}}
            observed = await ask(
                type="reset", id=1, deadline_s=9.0, episode=7, task=task, options={}, tool_timeout_s=5.0, unknown="ignored"
            )
            assert observed["messages"][1] == {"role": "user", "content": "Note it."}
            assert observed["tools"][1]["name"] == "note"
            calls = [{"type": "call", "name": "note", "arguments": '{"text": "hello"}'}]
            stepped = await ask(type="step", id=2, deadline_s=9.0, episode=7, content="", calls=calls)
            assert stepped["messages"] == [{"role": "tool", "content": "hello"}]
            assert (stepped["reward"], stepped["done"], stepped["fault"]) == (0.0, False, None)
            done = await ask(type="step", id=3, deadline_s=9.0, episode=7, content="yes", calls=[])
            assert (done["reward"], done["done"]) == (1.0, True)
            assert await ask(type="close", id=4, deadline_s=9.0, episode=7) == {"type": "closed", "id": 4}
            late = await ask(type="step", id=5, deadline_s=9.0, episode=7, content="", calls=[])
            assert (late["type"], late["reason"]) == ("failed", "broken")


async def test_a_server_written_from_the_document_is_played_on() -> None:
    """A whole server of another environment: answers are made by hand."""

    async def serve(request: aiohttp.web.Request) -> aiohttp.web.WebSocketResponse:
        assert request.headers["Authorization"] == f"Bearer {TOKEN}"
        socket = aiohttp.web.WebSocketResponse()
        await socket.prepare(request)
        async for frame in socket:
            asked = msgspec.msgpack.decode(frame.data)
            match asked["type"]:
                case "hello":
                    answer = {"type": "welcome", "protocol": 1, "environment": "echo", "server": "by hand", "session": "s1"}
                case "reset":
                    said = [{"role": "user", "content": asked["task"]["prompt"]}]
                    answer = {"type": "observed", "id": asked["id"], "messages": said, "tools": []}
                case "step":
                    answer = {"type": "stepped", "id": asked["id"], "messages": [], "reward": 0.5, "done": True}
                case "close":
                    answer = {"type": "closed", "id": asked["id"]}
                case _:
                    continue
            await socket.send_bytes(msgspec.msgpack.encode(answer))
        return socket

    application = aiohttp.web.Application()
    application.router.add_get("/", serve)
    runner = aiohttp.web.AppRunner(application)
    await runner.setup()
    site = aiohttp.web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        async with serving(servers(f"ws://127.0.0.1:{runner.addresses[0][1]}"), TOKEN) as pool:
            environment = await begun(pool)
            result = await environment.step(Action("anything", ()))
            assert (result.reward, result.done, result.fault) == (0.5, True, None)
            await environment.close()
        url = f"ws://127.0.0.1:{runner.addresses[0][1]}"
        async with connected(url) as one, connected(url) as two:
            assert one.lost_error().incident != two.lost_error().incident, "although the server calls both s1"
    finally:
        await runner.cleanup()


@pytest.mark.parametrize("client_goes", [False, True])
async def test_an_environment_that_is_being_made_when_its_episode_ends_is_closed(client_goes: bool) -> None:
    async with served(blocks_s=0.5) as (_, url), AsyncExitStack() as stack:
        pool = await stack.enter_async_context(serving(servers(url), TOKEN))
        environment = RemoteEnvironment(pool)
        await environment.ready()
        beginning = asyncio.create_task(environment.reset(TASK))
        async with asyncio.timeout(60):
            while not Notes.open:  # noqa: ASYNC110 - the environment is made in another thread
                await asyncio.sleep(0.01)
        beginning.cancel()
        if client_goes:
            await stack.aclose()
        else:
            await environment.close()
        async with asyncio.timeout(60):
            while Notes.open:  # noqa: ASYNC110 - and closed there
                await asyncio.sleep(0.01)
        assert Notes.closed == 1


async def test_a_server_whose_shared_part_ends_by_itself_fails_with_the_reason() -> None:
    async with served("served_environments:Fading") as (server, url), serving(servers(url), TOKEN) as pool:
        environment = await begun(pool)
        async with asyncio.timeout(60):
            assert "what its episodes share is gone: share() of served_environments:Fading" in str(
                await server.environments.wait_failed()
            )
        await environment.close()


def test_a_server_needs_neither_torch_nor_vllm_nor_ray() -> None:
    """In a process in which these cannot be imported, the command line is loaded, and an environment is served."""
    code = """
import asyncio, sys
for missing in ("torch", "vllm", "ray", "transformers", "megatron", "hydra", "omegaconf", "yaml", "pyarrow", "mlflow", "mcp"):
    sys.modules[missing] = None
import asyncrl.cli.main
from asyncrl.envs.remote.served_environments import Served, ServedEnvironments
from asyncrl.envs.remote.server import EnvironmentServer

async def serve():
    server = EnvironmentServer(ServedEnvironments(Served("calculator"), "asyncrl test"), "token")
    await server.start("127.0.0.1", 0)
    await server.close()

asyncio.run(serve())
print("served")
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert (ended.stdout, ended.returncode) == ("served\n", 0), ended.stderr


async def test_launch_checks_servers_options_and_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """What `asyncrl launch` asks before anything starts; it is blocking code, so the test calls it in a thread."""
    monkeypatch.setenv("ASYNCRL_ENV_TOKEN", TOKEN)
    async with served("calculator") as (_, url), served() as (_, other):

        async def refused(*urls: str, **keys: Any) -> str:
            member = load_member(RemoteEnvironmentConfig(urls=urls, **keys))
            with pytest.raises(RecipeError) as wrong:
                await asyncio.to_thread(member.check, os.environ)
            return str(wrong.value)

        fine = load_member(RemoteEnvironmentConfig(urls=(url,), options={"max_operations": 1}))
        await asyncio.to_thread(fine.check, os.environ)
        tasks = await asyncio.to_thread(fine.make_tasks, "train", 5, 1)
        assert list(tasks) == list(Calculator.make_tasks("train", 5, 1, max_operations=1))
        assert "environment.options.level: there is no such option" in await refused(url, options={"level": 1})
        assert "environment.urls: the servers differ" in await refused(url, other)
        assert "environment.urls: ws://127.0.0.1:1 cannot be reached" in await refused(url, "ws://127.0.0.1:1")
        monkeypatch.setenv("ASYNCRL_ENV_TOKEN", "another")
        assert "refuses the token" in await refused(url)
        assert "the environment variable NO_TOKEN is not set" in await refused(url, token_variable="NO_TOKEN")
        for wrong in ("http://a:1", "ws://", "ws://user:secret@a:1", "ws://a:b"):
            with pytest.raises(RecipeError, match=r"environment\.urls.*ws://host:port"):
                load_member(RemoteEnvironmentConfig(urls=(wrong,)))
