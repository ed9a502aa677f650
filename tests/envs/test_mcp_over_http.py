"""MCP servers over HTTP that fail, or before which something else answers."""

import asyncio
import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from typing import Any

import msgspec
import pytest
from aiohttp import web
from httpx2 import Request, Response
from mcp import MCPError

from asyncrl.core.errors import EnvironmentLost
from asyncrl.envs import ToolError
from asyncrl.envs.mcp import http_answers
from asyncrl.envs.mcp.schema_checks import SchemaChecks
from asyncrl.envs.mcp.session import McpServer, McpSession, NoSession

JSON, EVENTS, HTML = "application/json", "text/event-stream", "text/html"
DEADLINE_S = 60.0


def message(number: Any, **content: Any) -> str:
    return msgspec.json.encode({"jsonrpc": "2.0", "id": number, **content}).decode()


def error(text: str, code: int = -32603) -> str:
    return message(None, error={"code": code, "message": text})


def result(text: str) -> str:
    return message(0, result={"content": [{"type": "text", "text": text}]})


@asynccontextmanager
async def answering(
    status: int, kind: str, body: str, to: str, headers: dict[str, str], session: str, times: int
) -> AsyncIterator[str]:
    """A server that answers the first requests of one method, ``to``, with this, and all others as it should."""
    left = times

    async def answer(request: web.Request) -> web.Response:
        if request.method != "POST":
            return web.Response(status=405)
        asked = await request.json()
        if "id" not in asked:
            return web.Response(status=202)
        nonlocal left
        if asked["method"] == to and left:
            left -= 1
            return web.Response(
                status=status, content_type=kind, text=body.replace('"id":0', f'"id":{asked["id"]}'), headers=headers
            )
        tool = {"name": "echo", "inputSchema": {"type": "object"}}
        version = asked.get("params", {}).get("protocolVersion")
        answers = {
            "initialize": {"protocolVersion": version, "capabilities": {}, "serverInfo": {"name": "x", "version": "1"}},
            "tools/list": {"tools": [tool]},
            "tools/call": {"content": [{"type": "text", "text": "done"}]},
        }
        if asked["method"] not in answers:
            return web.Response(status=400, content_type=JSON, text=error("no such method", -32601))
        begun = {"mcp-session-id": session} if session else {}
        return web.Response(content_type=JSON, text=message(asked["id"], result=answers[asked["method"]]), headers=begun)

    async def redirect(_: web.Request) -> web.Response:
        return web.Response(status=307, headers={"Location": "/mcp"})

    application = web.Application()
    application.router.add_route("*", "/mcp", answer)
    application.router.add_route("*", "/mcp/", redirect)
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/mcp"
    finally:
        await runner.cleanup()


async def called(
    status: int,
    kind: str,
    body: str,
    to: str = "tools/call",
    session: str = "s",
    headers: dict[str, str] | None = None,
    slash: str = "",
    times: int = 1000,
    wait_s: float = 0.0,
    keeps_apart: bool = False,
) -> str:
    async with answering(status, kind, body, to, headers or {}, session, times) as url, asyncio.timeout(DEADLINE_S):
        with closing(SchemaChecks("x")) as checks:
            begun = McpSession(McpServer((), url + slash, (), {}, keeps_apart=keeps_apart), checks)
            await begun.start()
            try:
                return await begun.call("echo", {}, wait_s)
            finally:
                await begun.end()


@pytest.mark.parametrize(
    ("status", "kind", "body", "session", "said"),
    [
        (200, HTML, "<html>", "s", "content of type text/html"),
        (200, JSON, "", "s", "Failed to parse JSON"),
        (200, EVENTS, "", "s", "has ended"),
        (200, JSON, message(0, error={"code": -32000, "message": "Connection closed"}), "s", "has ended"),
        (202, JSON, "", "s", "HTTP status 202"),
        (400, JSON, error("Bad Request: No valid session ID provided", -32000), "s", "HTTP status 400"),
        (302, HTML, "", "s", "Redirect to http://elsewhere/"),
        (401, JSON, error("Unauthorized"), "s", "HTTP status 401"),
        (404, JSON, error("Session not found", -32001), "s", "HTTP status 404"),
        (404, HTML, "no such page", "", "HTTP status 404"),
        (404, JSON, "{}", "", "Not Found"),
        (429, JSON, error("slow down"), "", "HTTP status 429"),
        (500, HTML, "", "s", "HTTP status 500"),
        (503, JSON, error("overloaded"), "s", "HTTP status 503"),
    ],
)
async def test_a_failing_server_is_no_failing_tool(status: int, kind: str, body: str, session: str, said: str) -> None:
    headers = {"Location": "http://elsewhere/"} if status == 302 else {}
    with pytest.raises(EnvironmentLost, match=said):
        await called(status, kind, body, session=session, headers=headers)


@pytest.mark.parametrize("said", ["Failed to parse the date '2026-13-01'", "Not Found", "Redirect to whom?"])
async def test_what_a_server_says_in_words_like_the_sdks_is_shown(said: str) -> None:
    with pytest.raises(ToolError, match=re.escape(said)):
        await called(200, JSON, message(0, error={"code": -32602, "message": said}))


@pytest.mark.parametrize(
    ("status", "session", "code"),
    [
        (200, "s", -32602),
        (400, "s", -32602),
        (400, "", -32602),
        (404, "", -32602),
        (500, "s", -32602),
        (200, "s", -32000),
        (400, "", -32000),
        (500, "s", -32000),
        (200, "s", -32099),
    ],
)
async def test_what_a_server_says_of_a_call_is_shown(status: int, session: str, code: int) -> None:
    body = message(0, error={"code": code, "message": "no such city"})
    with pytest.raises(ToolError, match="no such city"):
        await called(status, JSON, body, session=session)


async def test_a_refusal_without_a_word_is_told_as_one() -> None:
    with pytest.raises(ToolError, match="the server refused the call, and did not say why"):
        await called(200, JSON, message(0, error={"code": -32602, "message": ""}))


@pytest.mark.parametrize(
    ("answer", "said"),
    [({}, "content: Field required"), ({"content": [{"type": "text"}]}, r"content\.0\.\w+\.text: Field required")],
)
async def test_what_is_no_result_of_a_tool_is_told_shortly(answer: dict[str, Any], said: str) -> None:
    with pytest.raises(ToolError, match=f"^the server answered with what is no result of a tool: .{said}.$"):
        await called(200, JSON, message(0, result=answer))


@pytest.mark.parametrize("session", ["s", ""])
@pytest.mark.parametrize(
    ("status", "after"),
    [(429, "0"), (429, ""), (429, "soon"), (429, "Sat, 01 Aug 2026 12:00:00 GMT"), (503, "0"), (503, "soon")],
)
async def test_a_busy_server_is_waited_for(status: int, after: str, session: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_answers, "WITHOUT_WORD_S", 0.0)
    headers = {"Retry-After": after} if after else {}
    assert await called(status, HTML, "", session=session, headers=headers, times=2, wait_s=DEADLINE_S) == "done"


@pytest.mark.parametrize(("status", "after"), [(429, "30"), (503, "30")])
async def test_a_server_that_is_busy_for_longer_than_a_call_may_take_is_a_failing_one(status: int, after: str) -> None:
    with pytest.raises(EnvironmentLost, match=f"has ended: it answered with HTTP status {status}, and asks to wait 30 s"):
        await called(status, JSON, error("slow down"), headers={"Retry-After": after}, wait_s=20.0)


@pytest.mark.parametrize("to", ["initialize", "tools/list"])
async def test_a_server_that_is_busy_from_the_start_says_when_to_come_back(to: str) -> None:
    with pytest.raises(NoSession, match="is busy: it answered with HTTP status 429, and asks to wait 7 s; try again") as wrong:
        await called(429, HTML, "", to=to, headers={"Retry-After": "7"})
    assert wrong.value.wait_s == 7.0


async def test_a_server_that_knows_no_sessions_cannot_keep_episodes_apart() -> None:
    with pytest.raises(NoSession, match=r"gives its sessions no ids, so it cannot keep apart .*; set it to shared") as wrong:
        await called(200, JSON, result(""), session="", keeps_apart=True)
    assert wrong.value.key == "session"
    assert await called(200, JSON, result("hello"), session="s", keeps_apart=True) == "hello"


@pytest.mark.parametrize(
    ("method", "asked", "counts"),
    [
        ("POST", {"id": 1, "method": "tools/call"}, True),
        ("POST", {"method": "notifications/initialized"}, False),
        ("POST", {"id": 1, "method": "subscriptions/listen"}, False),  # a proxy may hold it back, and end it as too late
        ("GET", {}, False),
    ],
)
async def test_a_session_stands_and_falls_with_the_answers_that_it_needs(
    method: str, asked: dict[str, Any], counts: bool
) -> None:
    assert await http_answers.answers_request(Response(504, request=Request(method, "http://x/mcp", json=asked))) is counts


@pytest.mark.parametrize("status", [400, 404, 200])
@pytest.mark.parametrize("code", [-32601, -32022, -32020])
async def test_a_server_of_the_newest_protocol_alone_cannot_keep_episodes_apart(status: int, code: int) -> None:
    with pytest.raises(
        NoSession, match=r"does not speak the protocol before 2026-07-28.* \(unheard of\), so .*; set it to sha"
    ) as wrong:
        await called(
            status, JSON, message(0, error={"code": code, "message": "unheard of"}), to="initialize", session="", keeps_apart=True
        )
    assert wrong.value.key == "session"


@pytest.mark.parametrize(
    ("after", "wait_s"),
    [
        ("7", 7.0),
        ("0", http_answers.LEAST_S),
        ("-5", http_answers.WITHOUT_WORD_S),
        ("1" * 400, http_answers.WITHOUT_WORD_S),
        ("soon", http_answers.WITHOUT_WORD_S),
        ("Sat, 01 Aug 2026 12:00:07 GMT", 7.0),
        ("Sat, 01 Aug 2026 12:00:07", 7.0),
        ("Sat, 01 Aug 2020 12:00:00 GMT", http_answers.LEAST_S),
        ("Sat, 01 Aug 99999999999999 12:00:00 GMT", http_answers.WITHOUT_WORD_S),
        ("Sat, 01 Aug 2026 12:00:00 +99999999999999", http_answers.WITHOUT_WORD_S),
    ],
)
def test_how_long_a_busy_server_asks_to_wait(after: str, wait_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_answers.time, "time", lambda: 1785585600.0)  # 1 August 2026, 12:00 UTC
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    try:
        assert http_answers.wait_before_next(Response(429, headers={"Retry-After": after})) == wait_s
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize("after", ["1" * 400, "Sat, 01 Aug 99999999999999 12:00:00 GMT"])
async def test_a_busy_server_that_says_nonsense_is_waited_for(after: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_answers, "WITHOUT_WORD_S", 0.0)
    assert await called(429, HTML, "", headers={"Retry-After": after}, times=1, wait_s=DEADLINE_S) == "done"


@pytest.mark.parametrize("took_s", [0.0, 0.2, 2.0])
async def test_a_server_that_stays_busy_is_a_failing_one_before_the_call_is_overdue(
    took_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If it were found by the deadline of the call, it would look like a tool that fails."""
    now, wait_s = [0.0], 3.0

    class Busy:
        async def call_tool(self, *_: Any) -> None:
            now[0] += took_s
            assert now[0] < wait_s
            raise MCPError(-32603, "it answered with HTTP status 429", {http_answers.WAIT: http_answers.LEAST_S})

    async def waiting(until: Any, seconds: float) -> None:
        until.close()
        now[0] += seconds

    monkeypatch.setattr("asyncrl.envs.mcp.session.time.monotonic", lambda: now[0])
    with closing(SchemaChecks("x")) as checks:
        session = McpSession(McpServer((), "http://x", (), {}), checks)
        session._client = Busy()  # type: ignore[assignment]
        with monkeypatch.context() as patched:
            patched.setattr(asyncio, "wait_for", waiting)
            with pytest.raises(EnvironmentLost, match=r"status 429, and asks to wait 0.1 s"):
                await session.call("echo", {}, wait_s)


async def test_a_redirect_of_the_servers_own_is_followed() -> None:
    assert await called(200, JSON, result("hello"), slash="/") == "hello"


@pytest.mark.parametrize("kind", [JSON, EVENTS])
async def test_a_long_result_is_a_result(kind: str) -> None:
    long = "x" * 5_000_000
    body = result(long)
    assert await called(200, kind, f"event: message\ndata: {body}\n\n" if kind == EVENTS else body) == long


@pytest.mark.parametrize(
    ("status", "kind", "body", "key", "said"),
    [
        (401, HTML, "", "token_variable", "refuses us: it answered with HTTP status 401; name the variable"),
        (403, JSON, error("no"), "token_variable", "refuses us: it answered with HTTP status 403; name the variable"),
        (405, HTML, "", "url", "does not speak MCP: it answered with HTTP status 405; correct the URL"),
        (200, HTML, "<html>", "url", "does not speak MCP: it answered with content of type text/html; correct the URL"),
        (404, JSON, '{"detail":"Not Found"}', "url", "does not speak MCP: MCPError: Not Found; correct the URL"),
    ],
)
@pytest.mark.parametrize("keeps_apart", [False, True])
async def test_what_keeps_a_session_from_beginning_is_named(
    status: int, kind: str, body: str, key: str, said: str, keeps_apart: bool
) -> None:
    with pytest.raises(NoSession, match=said) as wrong:
        await called(status, kind, body, to="initialize", session="", keeps_apart=keeps_apart)
    assert wrong.value.key == key
