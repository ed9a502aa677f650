"""What episodes cost a generator: beside the bare engine, and in its event loop.

Ratios and processor time are of two measurements that alternate within one run, because the load of a machine changes from minute
to minute.
"""

import asyncio
import statistics
import tempfile
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import msgspec
from rich import box
from rich.console import Console, RenderableType
from rich.table import Table

from asyncrl.bench.generators.gateway_runs import Through, play_through
from asyncrl.bench.generators.generator_runs import Cost, Measured, make_model, tool_overhead_ms
from asyncrl.bench.loop.loop_lag import LoopLag
from asyncrl.bench.own_process import in_own_process
from asyncrl.bench.remote_cost import mcp_call_ms, remote_step_ms
from asyncrl.bench.sandbox_cost import sandbox_cost
from asyncrl.core.errors import RecipeError
from asyncrl.core.recipe.generators import GeneratorsConfig


class GeneratorBenchSettings(msgspec.Struct, frozen=True):
    """What is measured.

    Attributes:
        model: size of the scripted model, ``1m`` or ``6m`` parameters.
        episodes: episodes at once, beside the bare engine.
        turns: turns of each episode, each with one call.
        repetitions: measurements of episodes and bare engine, which alternate; one more of each comes first and does not count.
        many_episodes: episodes at once while the event loop's lag is measured.
        wait_s: seconds that each of their calls takes.
        calls: calls whose overhead is measured.
        start_s: deadline of the engine's start.
    """

    model: str = "6m"
    episodes: int = 64
    turns: int = 6
    repetitions: int = 3
    many_episodes: int = 512
    wait_s: float = 0.05
    calls: int = 5_000
    start_s: float = 300.0


class GeneratorFigures(msgspec.Struct, frozen=True):
    """What one engine and its episodes were measured to do.

    Attributes:
        ratio_to_bare_engine: completion tokens per second of the episodes over those of the bare engine (medians).
        episode_tokens_per_s, bare_tokens_per_s: the two, of each repetition.
        engine_cpu_s_per_1k_tokens, bare_engine_cpu_s_per_1k_tokens: processor time of the engine's processes for a thousand
            sampled tokens, with episodes and without (medians).
        front_end_cpu_s_per_1k_tokens, bare_front_end_cpu_s_per_1k_tokens: the same of the process that asks the engine. With
            episodes it also renders the chat template, reads calls and runs tools.
        event_loop_lag_p99_ms: what 99 % of the probes of the event loop did not exceed, in milliseconds.
        event_loop_lag_p50_ms, event_loop_lag_max_ms: the median, and the longest.
        many_tokens_per_s: completion tokens per second of the many episodes.
        tool_overhead_ms: what a call costs beside the tool itself.
        gateway_ratio, gateway_openai_ratio: completion tokens per second of episodes that a client in another process plays
            through the gateway, over those of the bare engine with the same requests: a client that writes HTTP by hand, and
            that of OpenAI's library (medians).
        gateway_cpu_ms: processor time that the gateway adds to a request of the bare client, beside the bare engine's (median).
        gateway_p50_ms, gateway_p99_ms: what such a request takes in the gateway beside the sampling.
    """

    ratio_to_bare_engine: float
    episode_tokens_per_s: tuple[float, ...]
    bare_tokens_per_s: tuple[float, ...]
    engine_cpu_s_per_1k_tokens: float
    bare_engine_cpu_s_per_1k_tokens: float
    front_end_cpu_s_per_1k_tokens: float
    bare_front_end_cpu_s_per_1k_tokens: float
    event_loop_lag_p99_ms: float
    event_loop_lag_p50_ms: float
    event_loop_lag_max_ms: float
    many_tokens_per_s: float
    tool_overhead_ms: float
    gateway_ratio: float
    gateway_openai_ratio: float
    gateway_cpu_ms: float
    gateway_p50_ms: float
    gateway_p99_ms: float


class GeneratorBenchResult(GeneratorFigures, frozen=True, kw_only=True):
    """What ``asyncrl bench generators`` writes.

    Attributes:
        sandbox_ms: median of a run of Python in the sandbox, in milliseconds; None if no sandbox works on this machine.
        remote_step_ms: median of a step on an environment server on this machine, in milliseconds.
        mcp_call_ms: median of a call of an MCP server's tool over standard streams, in milliseconds.
        seconds: duration of the benchmark.
    """

    sandbox_ms: float | None
    remote_step_ms: float
    mcp_call_ms: float
    settings: GeneratorBenchSettings
    seconds: float


def run(json_file: Path, console: Console, settings: GeneratorBenchSettings | None = None) -> GeneratorBenchResult:
    """Measure, and write ``json_file``.

    Raises:
        ComponentFailed: the engine died, or the episodes did not follow their script.
    """
    settings = settings or GeneratorBenchSettings()
    began = time.monotonic()
    console.print("Episodes beside the bare engine, and the event loop's lag ...")
    figures = in_own_process(measure, settings)
    console.print("Runs in the sandbox, steps on a server, and calls of an MCP server ...")
    result = GeneratorBenchResult(
        **msgspec.structs.asdict(figures),
        sandbox_ms=in_own_process(_run, sandbox_ms),
        remote_step_ms=in_own_process(_run, remote_step_ms),
        mcp_call_ms=in_own_process(_run, mcp_call_ms),
        settings=settings,
        seconds=time.monotonic() - began,
    )
    json_file.write_bytes(msgspec.json.format(msgspec.json.encode(result), indent=2) + b"\n")
    return result


def _run(work: Callable[[], Coroutine[Any, Any, float | None]]) -> Any:
    return asyncio.run(work())


async def sandbox_ms() -> float | None:
    """Median milliseconds of a run of Python in the sandbox, one at a time; None if no sandbox works here."""
    try:
        return (await sandbox_cost(at_once=1)).python_ms
    except RecipeError:
        return None


def measure(settings: GeneratorBenchSettings) -> GeneratorFigures:
    """Measure in this process."""
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "model"
        make_model(model, settings.model)
        return asyncio.run(_measure(settings, model))


async def _measure(settings: GeneratorBenchSettings, model: Path) -> GeneratorFigures:
    config = GeneratorsConfig(count=1, max_running=settings.many_episodes, kv_cache_mb=2048)
    overhead_ms = await tool_overhead_ms(settings.calls)
    measured = await Measured.start(model, config, settings.turns, settings.start_s)
    try:
        played: list[Cost] = []
        bare: list[Cost] = []
        for repetition in range(settings.repetitions + 1):
            cost, requests = await measured.episodes(settings.episodes, 0.0, repetition)
            played.append(cost)
            bare.append(await measured.bare(requests))
        through = await _through_gateway(measured, settings)
        lag = LoopLag()
        many, _ = await measured.episodes(settings.many_episodes, settings.wait_s, settings.repetitions + 1, lag)
    finally:
        await measured.close()
    del played[0], bare[0]
    speeds, bare_speeds = (tuple(each.tokens_per_s for each in costs) for costs in (played, bare))
    return GeneratorFigures(
        ratio_to_bare_engine=statistics.median(speeds) / statistics.median(bare_speeds),
        episode_tokens_per_s=speeds,
        bare_tokens_per_s=bare_speeds,
        engine_cpu_s_per_1k_tokens=statistics.median(each.engine_cpu_s_per_1k_tokens for each in played),
        bare_engine_cpu_s_per_1k_tokens=statistics.median(each.engine_cpu_s_per_1k_tokens for each in bare),
        front_end_cpu_s_per_1k_tokens=statistics.median(each.front_end_cpu_s_per_1k_tokens for each in played),
        bare_front_end_cpu_s_per_1k_tokens=statistics.median(each.front_end_cpu_s_per_1k_tokens for each in bare),
        event_loop_lag_p99_ms=lag.percentile_ms(99),
        event_loop_lag_p50_ms=lag.percentile_ms(50),
        event_loop_lag_max_ms=lag.percentile_ms(100),
        many_tokens_per_s=many.tokens_per_s,
        tool_overhead_ms=overhead_ms,
        **msgspec.structs.asdict(through),
    )


class _Gateway(msgspec.Struct, frozen=True):
    gateway_ratio: float
    gateway_openai_ratio: float
    gateway_cpu_ms: float
    gateway_p50_ms: float
    gateway_p99_ms: float


async def _through_gateway(measured: Measured, settings: GeneratorBenchSettings) -> _Gateway:
    """Measure episodes through the gateway, in turn with the bare engine."""
    bare_client, openai_client, bare = list[Through](), list[Through](), list[Cost]()
    for repetition in range(settings.repetitions + 1):
        seed = settings.repetitions + 2 + repetition
        bare_client.append(await play_through(measured, "bare", settings.episodes, seed))
        bare.append(await measured.bare(bare_client[-1].requests))
        openai_client.append(await play_through(measured, "openai", settings.episodes, seed))
    del bare_client[0], openai_client[0], bare[0]
    speed = statistics.median(each.tokens_per_s for each in bare)
    added = (
        (each.front_end_cpu_s - cost.front_end_cpu_s) / len(each.requests) for each, cost in zip(bare_client, bare, strict=True)
    )
    return _Gateway(
        gateway_ratio=statistics.median(each.tokens_per_s for each in bare_client) / speed,
        gateway_openai_ratio=statistics.median(each.tokens_per_s for each in openai_client) / speed,
        gateway_cpu_ms=statistics.median(added) * 1e3,
        gateway_p50_ms=statistics.median(each.percentile_ms(50) for each in bare_client),
        gateway_p99_ms=statistics.median(each.percentile_ms(99) for each in bare_client),
    )


def view(result: GeneratorBenchResult) -> RenderableType:
    """The result as a table."""
    table = Table(title="Generators", title_justify="left", show_header=False, border_style="dim", box=box.ROUNDED)
    table.add_column(style="dim")
    table.add_column(justify="right")
    settings = result.settings
    speeds = (statistics.median(each) for each in (result.episode_tokens_per_s, result.bare_tokens_per_s))
    table.add_row(f"{settings.episodes} episodes, bare engine", "{:,.0f}, {:,.0f} tokens/s".format(*speeds))
    table.add_row("ratio to the bare engine", f"{result.ratio_to_bare_engine:.2f}")
    engine = (result.engine_cpu_s_per_1k_tokens, result.bare_engine_cpu_s_per_1k_tokens)
    table.add_row("processor time of the engine", "{:.3f}, {:.3f} s for 1,000 tokens".format(*engine))
    front_end = (result.front_end_cpu_s_per_1k_tokens, result.bare_front_end_cpu_s_per_1k_tokens)
    table.add_row("processor time of the front end", "{:.3f}, {:.3f} s for 1,000 tokens".format(*front_end))
    lags = (result.event_loop_lag_p50_ms, result.event_loop_lag_p99_ms, result.event_loop_lag_max_ms)
    table.add_row(f"event loop lag, {settings.many_episodes} episodes", "{:.1f} p50, {:.1f} p99, {:.1f} max ms".format(*lags))
    table.add_row("one call of a tool", f"{result.tool_overhead_ms:.3f} ms beside the tool")
    ratios = (result.gateway_ratio, result.gateway_openai_ratio)
    table.add_row("gateway, to the bare engine", "{:.2f} bare client, {:.2f} openai".format(*ratios))
    times = (result.gateway_cpu_ms, result.gateway_p50_ms, result.gateway_p99_ms)
    table.add_row("a request in the gateway", "{:.1f} ms of processor time; {:.1f} p50, {:.1f} p99 ms".format(*times))
    ran = "no sandbox here" if result.sandbox_ms is None else f"{result.sandbox_ms:.1f} ms"
    table.add_row("one run of Python in the sandbox", ran)
    table.add_row("one step on a server", f"{result.remote_step_ms:.2f} ms")
    table.add_row("one call of an MCP server", f"{result.mcp_call_ms:.2f} ms")
    return table
