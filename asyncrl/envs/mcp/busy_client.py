"""Hands on that a server over HTTP is busy, and how long it asks to wait: the SDK passes no header on to its callers."""

from http import HTTPStatus
from typing import Any

import httpx2
from mcp.types import INTERNAL_ERROR

from asyncrl.envs.mcp.http_answers import WAIT, answers_request, wait_before_next


class BusyClient(httpx2.AsyncClient):
    """A client that makes of a busy server's answer an error of MCP, which says how long to wait."""

    async def send(self, request: httpx2.Request, **settings: Any) -> httpx2.Response:
        """Send a request."""
        response = await super().send(request, **settings)
        wait_s = wait_before_next(response)
        if wait_s is None or not await answers_request(response):
            return response
        await response.aclose()
        said = f"it answered with HTTP status {response.status_code}"
        error = {"code": INTERNAL_ERROR, "message": said, "data": {WAIT: wait_s}}
        return httpx2.Response(HTTPStatus.BAD_REQUEST, json={"jsonrpc": "2.0", "id": None, "error": error}, request=request)
