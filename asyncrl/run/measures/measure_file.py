"""The file ``measures.jsonl`` of a run folder: what each training step took, and what was computed in it, one line a step.

It is what rates are fitted from (:mod:`asyncrl.planning`): where MLflow has shares, it has seconds and counts. What always holds:
a step that a resumed run does again adds a line, but reading returns the first of each step, which was not played from the
journal; a line that was cut off by a kill is left out.
"""

from pathlib import Path

import msgspec

from asyncrl.core.errors import RecipeError
from asyncrl.core.files.file_errors import refusing
from asyncrl.core.files.line_files import append_line, last_lines
from asyncrl.core.measures.time_split import TimeSplit

TAIL_BYTES = 1 << 16
"""What :func:`last_step` reads: many lines."""


class StepMeasure(msgspec.Struct, frozen=True, kw_only=True):
    """One training step.

    Attributes:
        step: the training step, from 1.
        time: where its time went, and what was made in it.
        rows, computed_tokens: rows of the batch, and tokens that one pass over them computed.
        delivery_s: how long the publication took that was delivered in it; None if none was.
        pause_s: how long the last publication kept an engine from sampling.
        staleness_mean, staleness_max: of the tokens in the loss; ``masked`` were left out because they are too old.
        filtered, complete: groups that filters left out, and groups that became complete.
        depth, engines: the pipeline depth, and engines of all pools.
        cores: processor cores of the driver's machine.
        device: what computes: the name of the GPUs, or ``cpu``.
    """

    step: int
    time: TimeSplit
    rows: int
    computed_tokens: int
    delivery_s: float | None
    pause_s: float
    staleness_mean: float
    staleness_max: int
    masked: int
    filtered: int
    complete: int
    depth: int
    engines: int
    cores: int
    device: str


class _Numbered(msgspec.Struct, frozen=True):
    step: int


def append(file: Path, measure: StepMeasure) -> None:
    """Add the line of a training step.

    Raises:
        OSError: the disk refuses.
    """
    append_line(file, msgspec.json.encode(measure))


def read(file: Path) -> list[StepMeasure]:
    """Read the steps of a run, in order.

    Raises:
        RecipeError: the file is not there, cannot be read, or has no step.
    """
    remedy = "name a run of at least two training steps; runs of earlier versions did not keep these measures"
    with refusing(f"read {str(file)!r}", remedy, "--from"):
        lines = file.read_bytes().split(b"\n")
    steps: dict[int, StepMeasure] = {}
    for line in lines:
        try:
            measure = msgspec.json.decode(line, type=StepMeasure)
        except msgspec.DecodeError:
            continue  # a kill cut it off
        steps.setdefault(measure.step, measure)
    if not steps:
        raise RecipeError("--from", f"{str(file)!r} has no training step yet", remedy)
    return [steps[step] for step in sorted(steps)]


def last_step(file: Path) -> int | None:
    """The last training step that is in the file; None if there is none. Reads little, however long the file is."""
    for line in reversed(last_lines(file, TAIL_BYTES)):
        try:
            return msgspec.json.decode(line, type=_Numbered).step
        except msgspec.DecodeError:
            continue
    return None
