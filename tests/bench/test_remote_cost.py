"""Both benchmarks of calls that run elsewhere start their servers, get answers, and end them."""

import asyncio
from collections.abc import Awaitable, Callable

import psutil
import pytest

from asyncrl.bench import remote_cost
from asyncrl.bench.remote_cost import mcp_call_ms, remote_step_ms
from asyncrl.core.errors import ComponentFailed


@pytest.mark.parametrize("measure", [remote_step_ms, mcp_call_ms])
async def test_calls_elsewhere_are_measured_and_leave_no_server(
    measure: Callable[[int], Awaitable[float]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_cost, "_WARM_UP", 1)
    before = set(psutil.Process().children())
    async with asyncio.timeout(120):
        assert await measure(2) > 0
    left = set(psutil.Process().children()) - before
    assert psutil.wait_procs(left, timeout=30)[1] == []  # a process of an MCP server may take a moment more to end


async def test_a_server_that_does_not_start_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", "/bin/echo")
    with pytest.raises(ComponentFailed, match=r"`asyncrl env serve` did not say where it serves, but '-P -m asyncrl\.cli\.main"):
        await remote_step_ms(1)
