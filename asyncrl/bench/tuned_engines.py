"""A run on engines that tunes itself from a bad start, beside every fixed setting within its bounds.

The workload is ``slow`` with few episodes at once on an engine, so that a second engine finds time on the same cores. The best
fixed setting is run once more after the tuned run: how far its two rates are apart says what the machine did meanwhile.
"""

import tempfile
from collections.abc import Sequence
from itertools import product
from pathlib import Path

import msgspec
from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from asyncrl.bench.loop.one_run import run_workload
from asyncrl.bench.loop.workloads import WORKLOADS
from asyncrl.bench.own_process import MeasurementInterrupted, in_own_process
from asyncrl.core.measures.time_split import TimeSplit
from asyncrl.core.recipe.knobs import Setting
from asyncrl.core.recipe.tune import DEPTH
from asyncrl.core.tuning.moves import Line, Moved
from asyncrl.planning.rate_fit import usual_steps
from asyncrl.run.folder.run_folder import RunFolder
from asyncrl.run.measures.measure_file import StepMeasure, read
from asyncrl.run.recipe.compose import compose
from asyncrl.run.tuning.move_journal import MoveJournal

ENGINES = "generators.count"
KNOBS = {ENGINES: (1, 2), DEPTH: (1, 2)}
EVERY = 8
"""Training steps for which the tuned run measures a setting."""
FIXED_STEPS, TUNED_STEPS, LAST = 24, 120, 24
"""Training steps of a run with a fixed setting, those of the tuned run, and those at its end that are compared."""
WORKLOAD = msgspec.structs.replace(WORKLOADS["slow"], groups_per_step=4)
KEYS = ("generators.max_running=8", "buffer.max_staleness=4")


class TunedEngines(msgspec.Struct, frozen=True):
    """What was measured, in trained tokens a second.

    Attributes:
        fixed: by setting, as ``1 x 2`` (engines x depth).
        best: the fastest setting, and ``again`` its rate after the tuned run.
        first, last: rates of the tuned run before its first move, and at its end.
        moves: what it said of each.
        setting: that of its last step.
    """

    fixed: dict[str, float]
    best: str
    again: float
    first: float
    last: float
    moves: tuple[str, ...]
    setting: str


def run(json_file: Path, console: Console) -> TunedEngines:
    """Run all, one after another, and write the result to ``json_file``.

    Raises:
        ComponentFailed: a run failed.
        KeyboardInterrupt: the user stopped a run.
    """

    sizes = product(*(range(least, most + 1) for least, most in KNOBS.values()))
    settings = {_name(values): dict(zip(KNOBS, values, strict=True)) for values in sizes}
    with tempfile.TemporaryDirectory(prefix="asyncrl-bench-tune-") as folder:

        def measured(name: str, setting: Setting, steps: int = FIXED_STEPS, keys: Sequence[str] = ()) -> RunFolder:
            console.print(f"Measuring {name}", markup=False, highlight=False)
            keys = (*KEYS, *(f"{knob}={value}" for knob, value in setting.items()), *keys)
            try:
                return RunFolder.find(Path(in_own_process(run_workload, name, WORKLOAD, steps, keys, folder)))
            except MeasurementInterrupted:
                raise KeyboardInterrupt from None

        fixed = {name: _rate(_steps(measured(name, setting))) for name, setting in settings.items()}
        best = max(fixed, key=fixed.__getitem__)
        knobs = ", ".join(f"{knob}: [{least}, {most}]" for knob, (least, most) in KNOBS.items())
        start = {knob: least for knob, (least, _) in KNOBS.items()}
        tuned = measured("tuned", start, TUNED_STEPS, [f"tune={{knobs: {{{knobs}}}, every: {EVERY}}}"])
        again = _rate(_steps(measured(f"{best} once more", settings[best])))
        result = compared(fixed, best, again, _steps(tuned), MoveJournal(tuned.tuning).read())
    json_file.write_bytes(msgspec.json.format(msgspec.json.encode(result)))
    return result


def compared(
    fixed: dict[str, float], best: str, again: float, steps: Sequence[StepMeasure], lines: Sequence[Line]
) -> TunedEngines:
    """The result, from the steps and the journal of the tuned run."""
    began = next((line.step for line in lines if isinstance(line, Moved)), steps[-1].step)
    first = _rate([step for step in steps if step.step <= began])
    end = steps[-1]
    setting = _name((end.engines, end.depth))
    return TunedEngines(fixed, best, again, first, _rate(steps[-LAST:]), tuple(line.sentence for line in lines), setting)


def view(result: TunedEngines) -> RenderableType:
    """A table of the fixed settings, what the tuned run did, and how it ended."""
    table = Table("engines x depth", "trained tokens/s", "of the best", box=box.ROUNDED, border_style="dim")
    mean = (result.fixed[result.best] + result.again) / 2
    rates = {**result.fixed, f"{result.best} once more": result.again, "tuned, first": result.first, "tuned, last": result.last}
    for name, rate in rates.items():
        table.add_row(name, f"{rate:,.0f}", f"{rate / mean:.2f}")
    return Group(*map(Text, result.moves), table)


def _steps(folder: RunFolder) -> list[StepMeasure]:
    return usual_steps(read(folder.measures), compose(str(folder.recipe)))


def _rate(steps: Sequence[StepMeasure]) -> float:
    return sum((step.time for step in steps), TimeSplit()).trained_per_s


def _name(sizes: Sequence[int]) -> str:
    return " x ".join(map(str, sizes))
