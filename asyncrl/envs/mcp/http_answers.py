"""Tells the failures of a server over HTTP from those of its tools: the SDK makes the same errors of both."""

import math
import re
import time
from datetime import UTC
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    import httpx2

FORBIDDING = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)
_OF_SDK = re.compile(
    r"-32600 Session terminated|-32603 Server returned an error response|-32601 Not Found"
    r"|-32700 Failed to parse (JSON response|SSE message): .*|-\d+ Redirect to \S+ not followed.*",
    re.DOTALL,
)
"""Code and text of the errors that the SDK makes itself of an answer that holds no message of MCP."""
_ENDED = re.compile(
    r"-32000 (Connection closed|SSE stream (ended without a response|ended and reconnection attempts were exhausted|failed: .*))",
    re.DOTALL,
)
"""Code and text of the errors that the SDK makes of a connection that has ended. Servers have errors of this code, too."""
_FORGOTTEN = -32000
"""The code with which servers of the TypeScript SDK, by status 400, say that they know no such session."""
_NEVER_OF_TOOLS = (
    *FORBIDDING,
    *(HTTPStatus.METHOD_NOT_ALLOWED, HTTPStatus.NOT_ACCEPTABLE, HTTPStatus.REQUEST_TIMEOUT),
    *(HTTPStatus.BAD_GATEWAY, HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.GATEWAY_TIMEOUT),
)
"""Statuses of a failing server or of what stands before it, whatever the body says."""
WAIT = "asyncrl_wait_s"
"""The key of an error's data under which a client of ours puts the seconds that a busy server asks to wait."""
WITHOUT_WORD_S, LEAST_S = 1.0, 0.1
"""Seconds to wait for a busy server that does not say how long, and the fewest."""
_JSON, _EVENTS = "application/json", "text/event-stream"


def is_unspoken(code: int, text: str) -> bool:
    """Whether the SDK made this error itself. One that a server wrote may begin alike: "Failed to parse the date"."""
    return _OF_SDK.fullmatch(f"{code} {text}") is not None


def has_ended(code: int, text: str) -> bool:
    """Whether the SDK made this error of a connection that has ended."""
    return _ENDED.fullmatch(f"{code} {text}") is not None


async def answers_request(response: "httpx2.Response") -> bool:
    """Whether this is the answer to a request of MCP that a session cannot do without; to listen for changes is none."""
    if response.request.method != "POST":
        return False
    asked = msgspec.json.decode(await response.request.aread())
    return "id" in asked and asked.get("method") != "subscriptions/listen"


async def failure(response: "httpx2.Response") -> str:
    """Say how the server failed to answer a request of MCP; empty if it answered.

    A server may tell an error of the protocol or a tool by HTTP status 400, 404 or 500 with a message of JSON-RPC. With a
    session, 404 means that the server has forgotten it, and so does 400 with a certain code.
    """
    status, kind = response.status_code, response.headers.get("content-type", "").partition(";")[0].strip().lower()
    forgotten = "mcp-session-id" in response.request.headers and (
        status == HTTPStatus.NOT_FOUND
        or (status == HTTPStatus.BAD_REQUEST and kind == _JSON and await _error_code(response) == _FORGOTTEN)
    )
    wordless = status == HTTPStatus.ACCEPTED or (status >= HTTPStatus.BAD_REQUEST and kind != _JSON)
    if wordless or forgotten or status in _NEVER_OF_TOOLS:
        return f"it answered with HTTP status {status}"
    if status == HTTPStatus.OK and kind not in (_JSON, _EVENTS):
        return f"it answered with content of type {kind or 'unknown'}"
    return ""


def wait_before_next(response: "httpx2.Response") -> float | None:
    """Return the seconds that a busy server asks to wait; None if it is not busy, or does not speak of coming back."""
    status, after = response.status_code, response.headers.get("retry-after", "")
    if status != HTTPStatus.TOO_MANY_REQUESTS and not (status == HTTPStatus.SERVICE_UNAVAILABLE and after):
        return None
    try:
        seconds = float(after) if after.isdecimal() else _seconds_until(after)
    except (ValueError, OverflowError):
        seconds = math.inf
    return max(seconds, LEAST_S) if math.isfinite(seconds) else WITHOUT_WORD_S


def _seconds_until(date: str) -> float:
    """Return the seconds until a date of HTTP, which is in UTC also if it does not say so."""
    then = parsedate_to_datetime(date)
    return (then if then.tzinfo else then.replace(tzinfo=UTC)).timestamp() - time.time()


def asked_wait(error: BaseException) -> float | None:
    """Return the seconds that a busy server asks to wait by this error; None if it is about something else."""
    data = getattr(error, "data", None)
    wait_s = data.get(WAIT) if isinstance(data, dict) else None
    return float(wait_s) if isinstance(wait_s, int | float) else None


async def _error_code(response: "httpx2.Response") -> int | None:
    """Return the code of the error in a message of JSON-RPC; None if it is none."""
    try:
        code = msgspec.json.decode(await response.aread())["error"]["code"]
    except (msgspec.DecodeError, KeyError, TypeError):
        return None
    return code if isinstance(code, int) else None
