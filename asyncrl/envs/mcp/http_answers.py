"""Tells the failures of a server over HTTP from those of its tools: the SDK makes the same errors of both."""

import re
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
_NEVER_OF_TOOLS = (
    *FORBIDDING,
    *(HTTPStatus.METHOD_NOT_ALLOWED, HTTPStatus.NOT_ACCEPTABLE, HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS),
    *(HTTPStatus.BAD_GATEWAY, HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.GATEWAY_TIMEOUT),
)
"""Statuses of a failing server or of what stands before it, whatever the body says."""
_JSON, _EVENTS = "application/json", "text/event-stream"


def is_unspoken(code: int, text: str) -> bool:
    """Whether the SDK made this error itself. One that a server wrote may begin alike: "Failed to parse the date"."""
    return _OF_SDK.fullmatch(f"{code} {text}") is not None


async def answers_request(response: "httpx2.Response") -> bool:
    """Whether this is the answer to a request of MCP, and not to a notification or the like."""
    return response.request.method == "POST" and "id" in msgspec.json.decode(await response.request.aread())


def failure(response: "httpx2.Response") -> str:
    """Say how the server failed to answer a request of MCP; empty if it answered.

    A server may tell an error of the protocol or a tool by HTTP status 400, 404 or 500 with a message of JSON-RPC. With a
    session, 404 means that the server has forgotten it.
    """
    status, kind = response.status_code, response.headers.get("content-type", "").partition(";")[0].strip().lower()
    forgotten = status == HTTPStatus.NOT_FOUND and "mcp-session-id" in response.request.headers
    wordless = status == HTTPStatus.ACCEPTED or (status >= HTTPStatus.BAD_REQUEST and kind != _JSON)
    if wordless or forgotten or status in _NEVER_OF_TOOLS:
        return f"it answered with HTTP status {status}"
    if status == HTTPStatus.OK and kind not in (_JSON, _EVENTS):
        return f"it answered with content of type {kind or 'unknown'}"
    return ""
