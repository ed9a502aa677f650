"""The record of a run's training steps, ``RUN/steps.jsonl``: what each made, to compare with what somebody computes again.

What always holds: a line is appended whole or, if the process is killed, torn at the file's end, and a torn line counts as none;
the lines of a step come after the recipe that it was trained by. A step that a resume does again adds a line, which says nothing
of weights if these had been published before.
"""

import logging
import math
from collections.abc import Sequence
from pathlib import Path

import msgspec

from asyncrl.core.files.file_formats import UnknownFormat
from asyncrl.core.files.line_files import append_line, numbered_lines
from asyncrl.core.measures.metrics import combine
from asyncrl.learners.metrics import GRAD_NORM, POLICY_LOSS
from asyncrl.learners.step_report import Hardware, StepReport

logger = logging.getLogger(__name__)


class Launched(msgspec.Struct, frozen=True, tag="launched"):
    """The run is launched or resumed, and goes on from ``version``.

    Attributes:
        recipe: the resolved recipe, as YAML.
    """

    version: int
    recipe: str


class StepRecord(msgspec.Struct, frozen=True, tag="step"):
    """A training step.

    Attributes:
        step: its number; it made the policy version of this number.
        readings: the learner's readings, by name. The file lacks those that are not finite, which JSON cannot say.
        hardware: what the reporting rank computed on.
        fingerprint: of the weights it published, as hexadecimal digits; None if they were not published again.
    """

    step: int
    readings: dict[str, float]
    hardware: Hardware | None
    fingerprint: str | None = None

    @classmethod
    def of(cls, step: int, reports: Sequence[StepReport], fingerprint: int | None) -> "StepRecord":
        """Make the record of a step of what its ranks report, and the fingerprint of what they published."""
        readings = combine(reading for report in reports for reading in report.readings)
        hardware = next((report.hardware for report in reports if report.hardware is not None), None)
        return cls(step, readings, hardware, None if fingerprint is None else in_digits(fingerprint))


def in_digits(fingerprint: int) -> str:
    """A fingerprint as text: JSON numbers of 64 bits are not read back alike by everybody."""
    return f"{fingerprint:016x}"


Line = Launched | StepRecord

_decoder = msgspec.json.Decoder(Line)


class StepLog:
    """The file at ``path``, which need not exist."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def append(self, line: Line) -> None:
        """Add a line. What the disk refuses is missing in the record, and the log says so: no reason to end a run."""
        if isinstance(line, StepRecord):
            finite = {name: value for name, value in line.readings.items() if math.isfinite(value)}
            line = msgspec.structs.replace(line, readings=finite)
        try:
            append_line(self._path, msgspec.json.encode(line))
        except OSError as error:
            logger.warning("%s lacks a line, so that a replay has nothing to compare with there: %s", self._path, error)

    def read(self) -> list[Line]:
        """Read all lines.

        Raises:
            UnknownFormat: a whole line is not of this version of the program.
        """
        lines: list[Line] = []
        for number, text in numbered_lines(self._path):
            try:
                lines.append(_decoder.decode(text))
            except msgspec.ValidationError as error:
                problem = f"has a line {number} that this version of asyncrl cannot read ({error})"
                raise UnknownFormat(self._path, problem) from error
            except msgspec.DecodeError:
                logger.warning("line %d of %s is torn, and counts as none", number, self._path)
        return lines


class RecordedSteps:
    """The record of a run, step by step."""

    def __init__(self, lines: Sequence[Line]) -> None:
        self._steps: dict[int, StepRecord] = {}
        self._recipes: dict[int, str] = {}
        recipe = ""
        for line in lines:
            if isinstance(line, Launched):
                recipe = line.recipe
                continue
            before = self._steps.get(line.step)
            if before is not None and line.fingerprint is None and _alike(before, line):
                line = msgspec.structs.replace(line, fingerprint=before.fingerprint)  # a resume did the published step again
            self._steps[line.step], self._recipes[line.step] = line, recipe

    def __getitem__(self, step: int) -> StepRecord | None:
        """Return what is recorded of a step; None if nothing is."""
        return self._steps.get(step)

    @property
    def last(self) -> int:
        """The newest step that is recorded; 0 if none is."""
        return max(self._steps, default=0)

    def recipe_of(self, step: int) -> str | None:
        """Return the recipe, as YAML, that a step was trained by; None if it is not recorded."""
        return self._recipes.get(step)


COMPARED = (POLICY_LOSS.name, GRAD_NORM.name)
"""The readings by which two computations of a step are compared."""


def _alike(one: StepRecord, other: StepRecord) -> bool:
    return all(one.readings.get(name) == other.readings.get(name) for name in COMPARED)
