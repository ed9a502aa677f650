"""Calls over TCP, between a server and clients in one event loop, of either kind that the run's processes have."""

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import Awaitable, Sequence
from typing import Any

import msgspec
import pytest
import uvloop
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.core.errors import AsyncRLError, ComponentFailed, DeadlineExceeded, FailureKind, LedgerError, RecipeError
from asyncrl.core.ids import PolicyVersion, TaskId, WorkerId
from asyncrl.core.measures.buffer_statistics import BufferStatistics, GroupState, HeldGroups, LedgerCounts, StaleTokens
from asyncrl.core.network import listener
from asyncrl.core.network.tls import TlsKeys
from asyncrl.rpc import server
from asyncrl.rpc.client import ConnectionLost, RpcClient
from asyncrl.rpc.server import RpcServer
from asyncrl.rpc.wire import Call, Endpoint, Failure, Frames, encoder, signatures
from asyncrl.run.nodes.certificates import make_keys

STATISTICS = BufferStatistics(
    version=PolicyVersion(3),
    ledger=LedgerCounts(9, 1, 2, 3, 1, 1, 0, 1, {"zero_variance": 1}),
    payload_bytes=1,
    kept_batches=2,
    kept_bytes=3,
    held=(HeldGroups(PolicyVersion(2), GroupState.RUNNING, 1, 0.5),),
    lengths_issued=(0, 1),
    lengths_trained=(),
    late_samples=0,
    stale_tokens=StaleTokens(1, 2),
    lost_trajectories=0,
    failures={FailureKind.DATA: 1},
    filtered_tasks=(TaskId("t"),),
    skipped_rows={"a": 1},
)


class Point(msgspec.Struct, frozen=True):
    x: int
    name: str = ""


class Served:
    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.begun = asyncio.Event()
        self.ended: list[str] = []

    async def mirrored(self, points: Sequence[Point], by: float) -> dict[str, list[Point]]:
        return {"points": [Point(int(-by * point.x), point.name) for point in points]}

    async def length(self, data: bytes) -> int:
        return len(data)

    async def kind_of(self, worker: WorkerId) -> FailureKind:
        return FailureKind.DATA

    async def wait(self) -> None:
        self.begun.set()
        try:
            await self.gate.wait()
            self.ended.append("answered")
        except asyncio.CancelledError:
            self.ended.append("cancelled")
            raise

    async def statistics(self) -> BufferStatistics:
        return STATISTICS

    async def late(self) -> None:
        raise DeadlineExceeded("the learner", "a batch", 3.0, "raise it")

    async def broken(self) -> int:
        raise KeyError("no such thing")

    async def own(self) -> None:
        raise Own(3, object())

    async def unsayable(self) -> None:
        raise LedgerError("half a pair: \ud800")

    async def unanswerable(self) -> None:
        raise asyncio.CancelledError

    async def odd(self) -> Any:
        return object()


class Secretive(Served):
    """It has a method more than may be called."""

    async def secret(self) -> str:
        return "secret"


class Own(AsyncRLError):
    """Cannot be made again from what it says it was made of."""

    def __init__(self, number: int, thing: object) -> None:
        super().__init__(f"own error {number}")


METHODS = signatures(Served)
MINUTE = 60.0


KEYS = make_keys()


@pytest.fixture(params=[asyncio.DefaultEventLoopPolicy, uvloop.EventLoopPolicy], ids=["asyncio", "uvloop"])
def event_loop_policy(request: pytest.FixtureRequest) -> Any:
    return request.param()


class Line:
    """A server, and as many clients as are asked for."""

    def __init__(self, tls: TlsKeys | None = None) -> None:
        self.served = Secretive()
        self.server = RpcServer(self.served, METHODS, "the thing", tls)
        self.clients: list[RpcClient] = []

    async def client(self) -> RpcClient:
        if not self.clients:
            self.endpoint = await self.server.start("127.0.0.1")
        self.clients.append(await RpcClient.connect(self.endpoint, METHODS))
        return self.clients[-1]

    async def __aenter__(self) -> "Line":
        return self

    async def __aexit__(self, *_: object) -> None:
        self.server.close()
        for client in self.clients:
            client.close()


async def within(seconds: float, waiting: Awaitable[Any]) -> Any:
    async with asyncio.timeout(seconds):
        return await waiting


async def test_arguments_and_results_arrive_as_what_they_were():
    async with Line() as line:
        client = await line.client()
        assert await client.call(Served.mirrored, (Point(3, "a"), Point(4)), 2.0) == {"points": [Point(-6, "a"), Point(-8)]}
        assert await client.call(Served.kind_of, WorkerId("generator-0")) is FailureKind.DATA


async def test_all_that_a_buffer_tells_of_itself_arrives():
    assert STATISTICS.held
    assert STATISTICS.failures
    async with Line() as line:
        assert await (await line.client()).call(Served.statistics) == STATISTICS


async def test_a_call_that_waits_holds_up_no_other():
    async with Line() as line:
        first, second = await line.client(), await line.client()
        waiting = asyncio.create_task(first.call(Served.wait))
        await within(MINUTE, line.served.begun.wait())
        assert await within(MINUTE, first.call(Served.length, b"abc")) == 3
        assert await within(MINUTE, second.call(Served.length, b"ab")) == 2
        assert not waiting.done()
        line.served.gate.set()
        assert await within(MINUTE, waiting) is None


async def test_frames_of_many_megabytes_arrive_whole():
    async with Line() as line:
        client = await line.client()
        sizes = [0, 1, 70_000, 20 << 20]
        assert await within(MINUTE, asyncio.gather(*(client.call(Served.length, bytes(size)) for size in sizes))) == sizes


async def test_an_error_of_the_projects_own_arrives_as_it_was():
    async with Line() as line:
        client = await line.client()
        with pytest.raises(DeadlineExceeded, match="the learner waited 3 s for a batch; raise it") as raised:
            await client.call(Served.late)
        assert raised.value.owner == "a batch"


def test_an_error_of_a_class_that_is_unknown_here_arrives_as_what_its_class_extends():
    there = Failure.of(RecipeError("generators.count", "there is no room", "add nodes"))
    here = msgspec.structs.replace(there, names=["NoRoomThere", *there.names]).error()
    assert (type(here), str(here)) == (RecipeError, there.text)


@pytest.mark.parametrize(
    ("call", "told"),
    [
        ((Served.broken,), r"the thing \(broken\): KeyError: 'no such thing'"),
        ((Served.odd,), r"the thing \(odd\): TypeError: Encoding objects of type object is unsupported"),
        ((Served.own,), "own error 3"),
        ((Served.unsayable,), r"half a pair: \\ud800"),
        ((Secretive.secret,), r"the thing \(secret\): KeyError: 'secret'"),
        ((Served.length, 3), r"the thing \(length\): ValidationError: Expected `bytes`, got `int`"),
        ((Served.mirrored, ()), r"the thing \(mirrored\): ValidationError: Expected `array` of length 2, got 1"),
    ],
)
async def test_a_bug_is_the_callers_to_hear_of_and_ends_nothing(call: tuple, told: str):
    async with Line() as line:
        client = await line.client()
        with pytest.raises((ComponentFailed, LedgerError), match=told):
            await client.call(*call)
        assert await client.call(Served.length, b"a") == 1


async def test_who_waits_is_told_when_the_connection_ends_and_so_is_who_calls_later():
    async with Line() as line:
        client = await line.client()
        waiting = [asyncio.create_task(client.call(Served.wait)) for _ in range(3)]
        await within(MINUTE, line.served.begun.wait())
        client.close()
        for call in (*waiting, client.call(Served.length, b"a")):
            with pytest.raises(ConnectionLost):
                await within(MINUTE, call)


async def test_where_no_answer_can_be_the_connection_ends_and_no_other(caplog: pytest.LogCaptureFixture):
    async with Line() as line:
        client, other = await line.client(), await line.client()
        waiting = asyncio.create_task(client.call(Served.wait))
        for call in (client.call(Served.unanswerable), waiting):
            with pytest.raises(ConnectionLost):
                await within(MINUTE, call)
        assert "the thing: a call could not be answered" in caplog.text
        assert await other.call(Served.length, b"a") == 1


async def test_who_closes_does_not_wait_for_the_other_side_to_listen():
    async with Line() as line:
        client = await line.client()
        assert await client.call(Served.length, b"a") == 1
        asyncio.get_running_loop().call_soon(client.close)
        with pytest.raises(ConnectionLost):
            await within(MINUTE, client.call(Served.length, bytes(200 << 20)))


async def test_what_nobody_waits_for_any_more_is_cancelled():
    async with Line() as line:
        client, other = await line.client(), await line.client()
        waiting = asyncio.create_task(client.call(Served.wait))
        await within(MINUTE, line.served.begun.wait())
        client.close()
        async with asyncio.timeout(MINUTE):
            while not line.served.ended:  # noqa: ASYNC110 - nothing tells of it
                await asyncio.sleep(0.001)
        assert line.served.ended == ["cancelled"]
        assert await other.call(Served.length, b"a") == 1
        with pytest.raises(ConnectionLost):
            await waiting


async def test_an_answer_that_comes_too_late_harms_nobody():
    async with Line() as line:
        client = await line.client()
        waiting = asyncio.create_task(client.call(Served.wait))
        await within(MINUTE, line.served.begun.wait())
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        line.served.gate.set()
        assert await within(MINUTE, client.call(Served.length, b"a")) == 1
        assert line.served.ended == ["answered"]


async def test_where_nobody_listens():
    with pytest.raises(ConnectionLost, match=r"127.0.0.1:1 cannot be reached"):
        await RpcClient.connect(Endpoint("127.0.0.1", 1, b""), METHODS)
    with pytest.raises(ComponentFailed, match=r"the thing cannot listen at 192.0.2.1: .*--node-ip-address"):
        await RpcServer(Served(), METHODS, "the thing").start("192.0.2.1")


def test_the_token_is_not_told_by_accident():
    assert repr(Endpoint("127.0.0.1", 7, b"secret")) == "127.0.0.1:7"


@pytest.mark.parametrize(
    "said",
    [b"\x20\0\0\0" + bytes(32), b"\x01\0\0\0a", b"\xff\xff\xff\x7f", b"GET / HTTP/1.1\r\n\r\n", b""],
    ids=["wrong", "short", "long", "other", "silent"],
)
async def test_an_unknown_client_is_turned_away_and_not_heard(
    said: bytes, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    async with Line() as line:
        client = await line.client()
        assert await client.call(Served.length, b"a") == 1
        monkeypatch.setattr(listener, "INTRODUCTION_S", 0.05)  # of those who connect from now on
        reader, writer = await asyncio.open_connection(line.endpoint.host, line.endpoint.port)
        call = encoder.encode(Call(0, "wait", msgspec.Raw(encoder.encode(()))))
        writer.write(said + (len(call).to_bytes(4, "little") + call if said else b""))
        with contextlib.suppress(ConnectionResetError):
            assert await within(MINUTE, reader.read()) == b""
        writer.close()
        assert len(told(caplog)) == 1
        assert not line.served.begun.is_set()
        await asyncio.sleep(0.1)  # longer than the introduction may take
        assert await client.call(Served.length, b"a") == 1


async def unknown_client(endpoint: Endpoint) -> None:
    """Connects, says nothing of worth, and is turned away."""
    reader, writer = await asyncio.open_connection(endpoint.host, endpoint.port)
    writer.write(bytes(36))
    with contextlib.suppress(ConnectionResetError):
        await within(MINUTE, reader.read())
    writer.close()


def told(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """What the server logged; threads that earlier tests left behind may log, too."""
    return [record for record in caplog.records if record.name == server.__name__]


async def test_of_many_unknown_clients_the_first_is_told_and_the_others_are_counted(caplog: pytest.LogCaptureFixture):
    async with Line() as line:
        await line.client()
        for _ in range(50):
            await unknown_client(line.endpoint)
        assert len(told(caplog)) == 1
        line.server.close()
    assert len(told(caplog)) == 2
    assert "did not show the token; 48 other clients turned away since" in caplog.text


@pytest.mark.parametrize("tls", [None, KEYS], ids=["plain", "encrypted"])
async def test_those_who_connect_and_say_nothing_keep_nobody_out(tls: TlsKeys | None, caplog: pytest.LogCaptureFixture):
    async with Line(tls) as line:
        client = await line.client()
        open_files = len(os.listdir("/proc/self/fd"))
        silent = [await asyncio.open_connection(line.endpoint.host, line.endpoint.port) for _ in range(300)]
        first_ones, last_ones = silent[: 300 - listener.MOST_NEWCOMERS], silent[300 - listener.MOST_NEWCOMERS :]
        for reader, _ in first_ones:
            assert await within(MINUTE, reader.read()) == b"", "it is turned away long before its time is over"
        assert not any(reader.at_eof() for reader, _ in last_ones)
        assert len(os.listdir("/proc/self/fd")) < open_files + 300 + 300
        for each in (client, await line.client()):
            assert await within(MINUTE, each.call(Served.length, b"a")) == 1
        for _, writer in silent:
            writer.close()
    assert len(told(caplog)) == 2


@pytest.mark.parametrize("tls", [None, KEYS], ids=["plain", "encrypted"])
async def test_however_many_of_a_run_connect_at_once_all_are_let_in(tls: TlsKeys | None, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(listener, "MOST_NEWCOMERS", 4)
    monkeypatch.setattr(listener, "GRACE_S", MINUTE)
    async with Line(tls) as line:
        await line.client()
        clients = await within(MINUTE, asyncio.gather(*(line.client() for _ in range(60))))
        lengths = await within(MINUTE, asyncio.gather(*(client.call(Served.length, b"a") for client in clients)))
        assert lengths == [1] * 60


async def test_who_sends_a_byte_now_and_then_has_no_more_time_than_others(monkeypatch: pytest.MonkeyPatch):
    async with Line() as line:
        await line.client()
        monkeypatch.setattr(listener, "INTRODUCTION_S", 0.3)  # of those who connect from now on
        reader, writer = await asyncio.open_connection(line.endpoint.host, line.endpoint.port)
        async with asyncio.timeout(MINUTE):
            with contextlib.suppress(OSError):
                while not reader.at_eof():
                    writer.write(b"\x20"[: len(line.endpoint.token)])
                    await writer.drain()
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(reader.read(1), 0.1)
        writer.close()


class Collected(Frames):
    def __init__(self) -> None:
        super().__init__()
        self.frames: list[bytes] = []
        self.connection_made(Sending())

    def frame_received(self, frame: bytes) -> None:
        self.frames.append(frame)


class Sending(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__({"socket": socket.socket()})
        self.sent = b""

    def write(self, data: bytes) -> None:
        self.sent += data

    def is_closing(self) -> bool:
        return False


@given(frames=st.lists(st.binary(max_size=300)), cuts=st.lists(st.integers(0, 3000)))
def test_frames_arrive_however_the_network_cuts_them(frames: list[bytes], cuts: list[int]):
    connection = Collected()
    for frame in frames:
        connection.send(frame)
    sent = connection._transport.sent
    ends = sorted({min(cut, len(sent)) for cut in cuts} | {len(sent)})
    for begin, end in zip([0, *ends], ends, strict=False):
        connection.data_received(sent[begin:end])
    assert connection.frames == frames


async def test_encrypted_calls_and_clients_with_other_keys_or_none(caplog: pytest.LogCaptureFixture):
    async with Line(KEYS) as line:
        client = await line.client()
        assert await client.call(Served.length, bytes(3 << 20)) == 3 << 20
        plain = msgspec.structs.replace(line.endpoint, tls=None)
        other = msgspec.structs.replace(line.endpoint, tls=make_keys())
        for endpoint in (plain, other):

            async def call(endpoint: Endpoint = endpoint) -> None:
                await (await RpcClient.connect(endpoint, METHODS)).call(Served.length, b"a")

            with pytest.raises(ConnectionLost):
                await within(MINUTE, call())
        assert len(told(caplog)) == 1
        assert "showed no certificate of the run" in caplog.text
        assert await client.call(Served.length, b"a") == 1
    assert "TlsKeys(...)" in repr(KEYS)
    assert "PRIVATE" not in repr(KEYS)


async def test_what_is_sent_is_encrypted_with_keys_and_only_then():
    """A man in the middle sees the token without them, and neither token nor arguments with them."""
    for tls in (None, KEYS):
        seen: list[bytes] = []
        async with Line(tls) as line:
            await line.client()

            async def pass_on(from_client, to_client, endpoint=line.endpoint, seen=seen) -> None:
                from_server, to_server = await asyncio.open_connection(endpoint.host, endpoint.port)

                async def pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
                    while data := await source.read(1 << 16):
                        seen.append(data)
                        sink.write(data)
                    sink.close()

                await asyncio.gather(pump(from_client, to_server), pump(from_server, to_client))

            middle = await asyncio.start_server(pass_on, "127.0.0.1", 0)
            through = msgspec.structs.replace(line.endpoint, port=middle.sockets[0].getsockname()[1])
            client = await RpcClient.connect(through, METHODS)
            assert await client.call(Served.length, b"a payload of weight") == 19
            client.close()
            middle.close()
        visible = [secret in b"".join(seen) for secret in (line.endpoint.token, b"a payload of weight")]
        assert visible == [tls is None] * 2
