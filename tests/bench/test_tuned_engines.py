"""``asyncrl bench tune --engines``: the result, from the steps and the journal of the tuned run."""

import io

from rich.console import Console

from asyncrl.bench.tuned_engines import LAST, compared, view
from asyncrl.core.measures.time_split import TimeSplit
from asyncrl.core.tuning.moves import Judged, Moved
from asyncrl.run.measures.measure_file import StepMeasure


def step(number: int, tokens: int, engines: int) -> StepMeasure:
    return StepMeasure(
        step=number,
        time=TimeSplit(seconds=2.0, trained_tokens=tokens),
        rows=8,
        computed_tokens=tokens,
        delivery_s=None,
        pause_s=0.0,
        staleness_mean=0.5,
        staleness_max=1,
        masked=0,
        filtered=0,
        complete=4,
        depth=1,
        engines=engines,
        cores=2,
        device="cpu",
    )


def test_the_end_of_a_tuned_run_stands_beside_its_beginning_and_the_best_fixed_setting() -> None:
    moved = Moved(10, "generators.count", {"generators.count": 1, "buffer.pipeline_depth": 1}, 2, 1.6, 100.0, 0.05)
    judged = Judged(20, "generators.count", 1, 2, 1.6, 1.5, True)
    steps = [step(number, 200, 1) for number in range(1, 11)] + [step(number, 300, 2) for number in range(11, 11 + LAST)]
    result = compared({"1 x 1": 110.0, "2 x 1": 140.0}, "2 x 1", 160.0, steps, [moved, judged])
    assert (result.first, result.last, result.setting) == (100.0, 150.0, "2 x 1")
    assert result.moves == (moved.sentence, judged.sentence)
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(view(result))
    said = console.export_text()
    assert "1.50x (1.60x was foreseen)" in said
    assert "tuned, last" in said
    assert "1.00" in said
