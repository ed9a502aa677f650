"""Predicts runs of the workloads from other runs of them, and measures them: how far is ``asyncrl plan`` off?

Each setting is predicted from the run of the next setting of the same workload, never from its own. What other programs take of
the machine's cores is no property of a setting, and on a shared host it changes from run to run; so it is taken from the measured
run.
"""

import statistics
import tempfile
from collections.abc import Sequence
from itertools import combinations, groupby
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table

from asyncrl.bench.loop.one_run import run_workload
from asyncrl.bench.loop.workloads import WORKLOADS
from asyncrl.bench.own_process import MeasurementInterrupted, in_own_process
from asyncrl.core.measures.time_split import TimeSplit
from asyncrl.planning.prediction import Prediction, predict
from asyncrl.planning.rate_fit import Basis, fit_run

DIFFERS = 1.1
"""Pairs of settings are ranked whose measured throughputs differ by more than this factor."""
FILLING = 3
"""Training steps that are added to those of a setting, because the first ones do not count."""


class Setting(msgspec.Struct, frozen=True):
    """Keys of a workload's recipe.

    Attributes:
        steps: training steps that are measured.
    """

    name: str
    workload: str
    steps: int
    keys: tuple[str, ...]


def _setting(workload: str, steps: int, engines: int, ranks: int, depth: int, staleness: int) -> Setting:
    keys = (
        f"generators.count={engines}",
        f"learner.data_parallel={ranks}",
        f"buffer.pipeline_depth={depth}",
        f"buffer.max_staleness={staleness}",
    )
    return Setting(f"{workload}, {engines} x {ranks}, depth {depth} of {staleness}", workload, steps, keys)


SETTINGS = (
    _setting("short", 16, 1, 1, 1, 4),
    _setting("short", 16, 2, 1, 2, 4),
    _setting("short", 16, 1, 2, 2, 2),
    _setting("short", 16, 1, 1, 0, 0),
    _setting("tools", 8, 1, 1, 1, 4),
    _setting("tools", 8, 2, 1, 2, 4),
    _setting("turns", 6, 1, 1, 1, 4),
    _setting("turns", 6, 1, 2, 2, 4),
    _setting("slow", 8, 1, 1, 1, 4),
    _setting("slow", 8, 1, 1, 4, 8),
)
"""Ten settings: engines by ranks, pipeline depth of largest staleness."""


class Seen(msgspec.Struct, frozen=True):
    """Figures of one setting, predicted or measured."""

    trajectories_per_s: float
    staleness: float
    idle_generators: float
    idle_learner: float


class PlanBenchResult(msgspec.Struct, frozen=True):
    """What the benchmark found.

    Attributes:
        predicted, measured: by the setting's name.
        others: cores that others kept busy while the setting was measured.
        intervals: the ends of the interval of each predicted throughput.
    """

    predicted: dict[str, Seen]
    measured: dict[str, Seen]
    others: dict[str, float]
    intervals: dict[str, tuple[float, float]]

    @property
    def inside_intervals(self) -> float:
        """Share of the settings whose measured throughput is within the interval of the predicted one."""
        return statistics.fmean(
            low <= self.measured[name].trajectories_per_s <= high for name, (low, high) in self.intervals.items()
        )

    @property
    def errors(self) -> dict[str, float]:
        """The relative error of throughput of each setting."""
        return {
            name: abs(each.trajectories_per_s / self.measured[name].trajectories_per_s - 1)
            for name, each in self.predicted.items()
        }

    @property
    def ranking_right(self) -> float:
        """Share of the pairs of a workload that differ clearly and are ordered rightly; 1 if no pair does."""
        workload = {setting.name: setting.workload for setting in SETTINGS}
        right = []
        for one, other in combinations(self.predicted, 2):
            measured = self.measured[one].trajectories_per_s / self.measured[other].trajectories_per_s
            if workload[one] == workload[other] and max(measured, 1 / measured) > DIFFERS:
                right.append(
                    (self.predicted[one].trajectories_per_s > self.predicted[other].trajectories_per_s) == (measured > 1)
                )
        return statistics.fmean(right) if right else 1.0

    def with_more(self, other: "PlanBenchResult") -> "PlanBenchResult":
        """This result and that of further settings."""
        return PlanBenchResult(
            self.predicted | other.predicted,
            self.measured | other.measured,
            self.others | other.others,
            self.intervals | other.intervals,
        )

    def flat(self) -> dict[str, float]:
        """Everything by one key each, as the file has it."""
        found: dict[str, float] = {}
        for name in self.predicted:
            for kind, seen in (("predicted", self.predicted[name]), ("measured", self.measured[name])):
                found[f"{name}.{kind}"] = seen.trajectories_per_s
                for figure in ("staleness", "idle_generators", "idle_learner"):
                    found[f"{name}.{figure}.{kind}"] = getattr(seen, figure)
            found[f"{name}.others"] = self.others[name]
            found[f"{name}.low"], found[f"{name}.high"] = self.intervals[name]
        return found | {
            "median_error": statistics.median(self.errors.values()),
            "worst_error": max(self.errors.values()),
            "staleness_worst_error": self._worst("staleness"),
            "idle_worst_error": max(self._worst("idle_generators"), self._worst("idle_learner")),
            "ranking_right": self.ranking_right,
            "inside_intervals": self.inside_intervals,
        }

    def _worst(self, figure: str) -> float:
        off = (getattr(each, figure) - getattr(self.measured[name], figure) for name, each in self.predicted.items())
        return max(map(abs, off), default=0.0)


def run(json_file: Path, console: Console, settings: Sequence[Setting] = SETTINGS) -> PlanBenchResult:
    """Measure all settings, predict each from another, and write ``json_file`` after each workload, so that what was found is not
    lost with what comes after.

    Raises:
        ComponentFailed: a run failed.
        KeyboardInterrupt: the user stopped a run.
    """
    result = PlanBenchResult({}, {}, {}, {})
    with tempfile.TemporaryDirectory(prefix="asyncrl-bench-plan-") as folder:
        for _, of_workload in groupby(settings, lambda setting: setting.workload):
            bases: dict[str, Basis] = {}
            for setting in of_workload:
                console.print(f"Measuring {setting.name}", markup=False, highlight=False)
                try:
                    workload, steps = WORKLOADS[setting.workload], setting.steps + FILLING
                    run_folder = in_own_process(run_workload, setting.name, workload, steps, setting.keys, folder)
                    bases[setting.name] = fit_run(Path(run_folder))
                except MeasurementInterrupted:
                    raise KeyboardInterrupt from None
            result = result.with_more(compared(bases))
            json_file.write_bytes(msgspec.json.format(msgspec.json.encode(result.flat()), indent=2) + b"\n")
    return result


def compared(bases: dict[str, Basis]) -> PlanBenchResult:
    """Predict each setting of a workload, by name, from the run of the next one."""
    predicted: dict[str, Prediction] = {}
    names = list(bases)
    for name, following in zip(names, names[1:] + names[:1], strict=True):
        own = bases[name]
        assert own.recipe is not None
        predicted[name] = predict(own.recipe, _on_the_machine_of(bases[following], own))
    return PlanBenchResult(
        {name: _predicted(each) for name, each in predicted.items()},
        {name: _measured(basis) for name, basis in bases.items()},
        {name: basis.rates.machine.others.value for name, basis in bases.items() if basis.rates is not None},
        {name: (each.trajectories_per_s.low, each.trajectories_per_s.high) for name, each in predicted.items()},
    )


def _on_the_machine_of(basis: Basis, other: Basis) -> Basis:
    assert basis.rates is not None
    assert other.rates is not None
    machine = msgspec.structs.replace(basis.rates.machine, others=other.rates.machine.others)
    return msgspec.structs.replace(basis, rates=msgspec.structs.replace(basis.rates, machine=machine))


def _predicted(found: Prediction) -> Seen:
    return Seen(found.trajectories_per_s.mean, found.staleness_mean.mean, found.idle_generators.mean, found.idle_learner.mean)


def _measured(basis: Basis) -> Seen:
    time = sum((step.time for step in basis.measured), TimeSplit())
    tokens = [step.time.trained_tokens for step in basis.measured]
    ages = [step.staleness_mean for step in basis.measured]
    staleness = sum(age * weight for age, weight in zip(ages, tokens, strict=True)) / sum(tokens)
    return Seen(time.trajectories_per_s, staleness, time.idle.generators, time.idle.learner)


def view(result: PlanBenchResult) -> Table:
    """The result as a table."""
    flat = result.flat()
    said = (
        f"median {flat['median_error']:.1%}, worst {flat['worst_error']:.1%}, ranked rightly {flat['ranking_right']:.2f}, "
        f"within the interval {flat['inside_intervals']:.0%}"
    )
    columns = ("setting", "trajectories/s", "measured", "off by", "staleness", "measured", "idle", "measured")
    table = Table(*columns, title="Predictions", caption=said)
    for name, each in result.predicted.items():
        there = result.measured[name]
        table.add_row(
            name,
            f"{each.trajectories_per_s:.1f}",
            f"{there.trajectories_per_s:.1f}",
            f"{each.trajectories_per_s / there.trajectories_per_s - 1:+.0%}",
            f"{each.staleness:.2f}",
            f"{there.staleness:.2f}",
            f"{each.idle_generators:.0%}, {each.idle_learner:.0%}",
            f"{there.idle_generators:.0%}, {there.idle_learner:.0%}",
        )
    return table
