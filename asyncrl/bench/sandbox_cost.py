"""What a run in the sandbox costs: ``python -m asyncrl.bench.sandbox_cost`` measures every backend that works on this machine."""

import asyncio
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
from rich import box
from rich.console import Console
from rich.table import Table

from asyncrl.bench.loop.loop_lag import LoopLag
from asyncrl.core.errors import RecipeError
from asyncrl.envs.sandbox.limits import Limits
from asyncrl.envs.sandbox.messages import BackendName, Choice
from asyncrl.envs.sandbox.python_programs import RUN_CODE, python_command, python_folders
from asyncrl.envs.sandbox.sandbox import Sandbox

_LIMITS = Limits(wall_s=60.0, cpu_s=30.0)


class SandboxCost(msgspec.Struct, frozen=True):
    """What a run costs with one backend, in milliseconds.

    Attributes:
        command_ms: a command that does nothing, alone (median).
        python_ms: ``print(1)`` in Python, alone (median).
        at_once: runs side by side in the next two measurements.
        python_at_once_ms: seconds until all of them had ended, divided by their number.
        event_loop_lag_p99_ms: what 99 % of the probes of the event loop did not exceed meanwhile.
    """

    backend: BackendName
    command_ms: float
    python_ms: float
    at_once: int
    python_at_once_ms: float
    event_loop_lag_p99_ms: float


async def sandbox_cost(choice: Choice = Choice.AUTO, runs: int = 20, at_once: int = 64) -> SandboxCost:
    """Measure ``runs`` runs one after another of each command, and ``at_once`` runs of Python side by side.

    Raises:
        RecipeError: no backend of the choice works here.
    """
    with tempfile.TemporaryDirectory(prefix="asyncrl-bench-") as folder:
        async with Sandbox(choice) as sandbox:

            async def command() -> None:
                await sandbox.run(["/bin/sh", "-c", ":"], Path(folder), _LIMITS)

            async def python() -> None:
                await sandbox.run(python_command(RUN_CODE, False), Path(folder), _LIMITS, b"print(1)", python_folders(False))

            command_ms, python_ms = await _median_ms(command, runs), await _median_ms(python, runs)
            lag = LoopLag()
            began = time.perf_counter()
            with lag.probing():
                await asyncio.gather(*(python() for _ in range(at_once)))
            each_ms = (time.perf_counter() - began) / at_once * 1e3
            return SandboxCost(sandbox.backend, command_ms, python_ms, at_once, each_ms, lag.percentile_ms(99))


async def _median_ms(run: Callable[[], Awaitable[None]], runs: int) -> float:
    seconds = []
    for _ in range(runs):
        began = time.perf_counter()
        await run()
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds) * 1e3


def main() -> None:
    """Measure all backends, and print a table."""
    table = Table("backend", "a command", "Python", "Python, 64 at once", "event loop's lag (p99)", box=box.SIMPLE)
    for choice in (Choice.SANDLOCK, Choice.BUBBLEWRAP, Choice.NONE):
        try:
            cost = asyncio.run(sandbox_cost(choice))
        except RecipeError as error:
            table.add_row(choice, error.problem)
            continue
        figures = (cost.command_ms, cost.python_ms, cost.python_at_once_ms, cost.event_loop_lag_p99_ms)
        table.add_row(cost.backend, *(f"{figure:.1f} ms" for figure in figures))
    Console().print(table)


if __name__ == "__main__":
    main()
