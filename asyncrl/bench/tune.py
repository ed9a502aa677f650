"""Runs that tune themselves from a bad start while their episodes become longer, in simulated time, beside every fixed setting.

Buffer, pacing, delivery and the controller are the production code (:mod:`asyncrl.bench.tuned_run`). Every other run is
killed in the middle of a move, before or after the knob was turned, and goes on from its journal.
"""

from pathlib import Path
from statistics import fmean

import msgspec
from rich import box
from rich.console import Console, RenderableType
from rich.table import Table

from asyncrl.bench.tuned_run import ENGINES, TunedRun
from asyncrl.core.recipe.knobs import Setting, with_setting
from asyncrl.core.recipe.schema import Recipe
from asyncrl.core.recipe.tune import DEPTH
from asyncrl.core.tuning.moves import Line, Moved
from asyncrl.core.tuning.window import Seen
from asyncrl.run.recipe.compose import compose
from asyncrl.simulation.episodes import ModelEpisode, ModelEpisodes, ModelTurn, uniform
from asyncrl.simulation.modelled_run import ModelledRun
from asyncrl.simulation.rates import EngineRates, LearnerRates, PublicationRates, Rate, Rates

SEEDS, STEPS, LAST = 50, 300, 60
"""Tuned runs, the training steps of each, and those at its end that are compared."""
FIXED_STEPS = 40
DRIFT_STEPS = 150
"""Training steps in which the later kind of episode takes the place of the earlier."""
GROUPS, GROUP_SIZE = 4, 4
BOUNDS = (1, 4)
"""Of engines, and of depth; the start is the worst of both."""
LENGTHS = (0.7, 2.0)
TOOL_S = 1.0


class TunedResult(msgspec.Struct, frozen=True):
    """One tuned run.

    Attributes:
        setting: at its end.
        share: its trained tokens a second at its end, over those of the best fixed setting.
        moves, kept: how many were tried, and kept.
        killed: how it was killed, if it was.
        staleness: the largest mean staleness of a step.
    """

    seed: int
    setting: Setting
    share: float
    moves: int
    kept: int
    killed: str
    staleness: float


class TuneResult(msgspec.Struct, frozen=True):
    """All of them; ``fixed`` is trained tokens a second by ``engines x depth``, with the later episodes."""

    fixed: dict[str, float]
    best: float
    runs: tuple[TunedResult, ...]
    worst: float
    mean: float


class Killed(Exception):
    """The driver of a modelled run is killed."""


class MortalRun(TunedRun):
    """A tuned run that is killed once it has written down so many moves; ``made``: after the knob was turned."""

    kill_at: int | None = None
    made = False

    def _act(self) -> None:
        if self.kill_at is not None and sum(isinstance(line, Moved) for line in self.lines) == self.kill_at:
            if self.made:
                super()._act()
            raise Killed
        super()._act()


def recipe(every: int = 8) -> Recipe:
    """The recipe of all runs, with the bad start."""
    keys = (
        f"batch.groups_per_step={GROUPS}",
        f"batch.group_size={GROUP_SIZE}",
        "evaluation.every=1000000",
        "checkpoint.every=1000000",
        "generators.max_running=16",
        "generators.count=1",
        "buffer.max_staleness=4",
        "buffer.pipeline_depth=1",
        f"tune={{knobs: {{{ENGINES}: {list(BOUNDS)}, {DEPTH}: {list(BOUNDS)}}}, every: {every}}}",
    )
    return compose("quickstart", keys)


def rates() -> Rates:
    """Rates with which neither one engine nor a shallow pipeline is enough."""

    def rate(value: float, error: float | None = None) -> Rate:
        return Rate(value, "chosen", error)

    return Rates(
        engine=EngineRates(step=rate(0.02), request=rate(2e-3), prompt_token=rate(1e-5), start=rate(15.0)),
        learner=LearnerRates(step=rate(0.3), token=rate(6e-4, 0.08)),
        publication=PublicationRates(write=rate(0.05), move=rate(0.1), pause=rate(0.05)),
    )


def episodes(scale: float) -> ModelEpisodes:
    """Episodes of two turns with a tool between them, of skewed lengths."""

    def episode(group: int, sample: int) -> ModelEpisode:
        first = 8 + int(scale * 100 * uniform(group, sample) ** 2)
        tool_s = TOOL_S * (0.5 + uniform(group, sample, 1))
        return ModelEpisode((ModelTurn(40, first, tool_s), ModelTurn(6, int(12 * scale) + 1)))

    return ModelEpisodes([[episode(group, sample) for sample in range(GROUP_SIZE)] for group in range(64)])


def fixed(made: Recipe, setting: Setting, steps: int = FIXED_STEPS) -> float:
    """Trained tokens a second of a fixed setting with the later episodes."""
    found = ModelledRun(with_setting(made, setting), rates(), episodes(LENGTHS[1]), seed=0, steps=steps).run()
    return found.trained_tokens_per_s


def tuned(made: Recipe, seed: int, steps: int = STEPS, kill_at: int | None = None) -> tuple[MortalRun, list[Seen], str]:
    """Let a run tune itself; returns it, or what went on from it, its steps, and how it was killed."""
    kinds, drift = (episodes(LENGTHS[0]), episodes(LENGTHS[1])), DRIFT_STEPS * GROUPS * steps // STEPS
    run = MortalRun(made, rates(), kinds, lambda group: min(1.0, group / drift), seed=seed, steps=steps)
    run.kill_at, run.made = kill_at, seed % 4 > 1
    try:
        run.run()
        return run, run.seen, ""
    except Killed:
        began = run.seen[-1].step
    lines: list[Line] = list(run.lines)
    again = MortalRun(
        with_setting(made, run.setting),
        rates(),
        kinds,
        lambda group: min(1.0, (began * GROUPS + group) / drift),
        seed=seed + 1000,
        steps=steps - began,
        begun=began,
        lines=lines,
    )
    again.run()
    return again, [*run.seen, *again.seen], f"after {'the knob' if run.made else 'the line'} of move {kill_at}"


def run(json_file: Path, console: Console) -> TuneResult:
    """Run all, and write the result to ``json_file``."""
    made = recipe()
    sizes = range(BOUNDS[0], BOUNDS[1] + 1)
    by_setting = {f"{engines} x {depth}": fixed(made, {ENGINES: engines, DEPTH: depth}) for engines in sizes for depth in sizes}
    best = max(by_setting.values())
    results: list[TunedResult] = []
    for seed in range(SEEDS):
        done, seen, killed = tuned(made, seed, kill_at=1 + seed // 2 % 4 if seed % 2 else None)
        last = seen[-LAST:]
        rate = sum(step.tokens for step in last) / sum(step.seconds for step in last)
        moves = sum(isinstance(line, Moved) for line in done.lines)
        kept = sum(getattr(line, "kept", False) for line in done.lines)
        stale = max(step.staleness_mean for step in seen)
        results.append(TunedResult(seed, done.setting, rate / best, moves, kept, killed, stale))
        console.print(f"{seed + 1} of {SEEDS}: {rate / best:.2f} of the best fixed setting")
    shares = [each.share for each in results]
    result = TuneResult(by_setting, best, tuple(results), min(shares), fmean(shares))
    json_file.write_bytes(msgspec.json.format(msgspec.json.encode(result)))
    return result


def view(result: TuneResult) -> RenderableType:
    """A table of the fixed settings, and the shares of the tuned runs."""
    title = f"{len(result.runs)} tuned runs: {result.worst:.2f} of the best fixed setting or more, {result.mean:.2f} on average"
    table = Table(title=title, title_justify="left", border_style="dim", box=box.ROUNDED)
    for column in ("fixed: engines x depth", "trained tokens/s", "of the best"):
        table.add_column(column, justify="right")
    for name, rate in result.fixed.items():
        table.add_row(name, f"{rate:,.0f}", f"{rate / result.best:.2f}")
    return table
