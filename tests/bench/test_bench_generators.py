"""What the figures of ``asyncrl bench generators`` are made of; the runs themselves are given."""

import io
from collections.abc import Sequence
from pathlib import Path

import pytest
from rich.console import Console

from asyncrl.bench.generators import generators
from asyncrl.bench.generators.gateway_runs import Through
from asyncrl.bench.generators.generator_runs import Cost, Request
from asyncrl.bench.generators.generators import GeneratorBenchResult, GeneratorBenchSettings, view
from asyncrl.bench.loop.loop_lag import LoopLag


class GivenRuns:
    """Runs of which each costs more than the one before; the bare engine costs half."""

    def __init__(self) -> None:
        self.played = 0

    @classmethod
    async def start(cls, *arguments: object) -> "GivenRuns":
        return cls()

    async def episodes(self, count: int, wait_s: float, seed: int, lag: LoopLag | None = None) -> tuple[Cost, list[Request]]:
        if lag is not None:
            lag.add(0.001)
        self.played += 1
        return Cost(2000, 1.0, float(self.played), 0.1 * self.played), []

    async def bare(self, requests: Sequence[Request]) -> Cost:
        return Cost(2000, 0.5, self.played / 2, 0.05 * self.played)

    async def close(self) -> None:
        pass


async def given_through(measured: object, client: str, count: int, seed: int) -> Through:
    requests = [Request(0, [1], 10)] * 10
    return Through(3600.0 if client == "bare" else 2000.0, 0.05 * 4 * seed, requests, [1.0] * 98 + [2.0, 50.0])


async def test_processor_time_is_that_of_the_median_run_after_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    async def no_overhead(calls: int) -> float:
        return 0.01

    monkeypatch.setattr(generators, "Measured", GivenRuns)
    monkeypatch.setattr(generators, "tool_overhead_ms", no_overhead)
    monkeypatch.setattr(generators, "play_through", given_through)
    settings = GeneratorBenchSettings(repetitions=3)
    figures = await generators._measure(settings, Path("nowhere"))
    assert figures.ratio_to_bare_engine == 0.5
    assert (figures.engine_cpu_s_per_1k_tokens, figures.bare_engine_cpu_s_per_1k_tokens) == (1.5, 0.75)
    front_end = (figures.front_end_cpu_s_per_1k_tokens, figures.bare_front_end_cpu_s_per_1k_tokens)
    assert front_end == pytest.approx((0.15, 0.075))
    result = GeneratorBenchResult(
        **{name: getattr(figures, name) for name in figures.__struct_fields__},
        sandbox_ms=None,
        remote_step_ms=1.0,
        mcp_call_ms=1.0,
        settings=settings,
        seconds=1.0,
    )
    shown = io.StringIO()
    Console(file=shown, width=120).print(view(result))
    assert "1.500, 0.750 s for 1,000 tokens" in shown.getvalue()
    assert "0.90 bare client, 0.50 openai" in shown.getvalue()


async def test_what_the_gateway_adds_is_beside_the_bare_engine_s_and_the_sampling(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generators, "play_through", given_through)
    through = await generators._through_gateway(GivenRuns(), GeneratorBenchSettings(repetitions=3))  # type: ignore[arg-type]
    assert (through.gateway_ratio, through.gateway_openai_ratio) == (0.9, 0.5)
    assert through.gateway_cpu_ms == pytest.approx(0.2 * 7 / 10 * 1e3), "less the bare engine's, which is 0 here"
    assert (through.gateway_p50_ms, through.gateway_p99_ms) == (1.0, pytest.approx(2.48))
