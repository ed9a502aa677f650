"""What the run folders below a folder hold, a row for each; read from small files, so that thousands are listed in a moment."""

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import msgspec
import yaml

from asyncrl.core.errors import RecipeError
from asyncrl.core.files.file_formats import UnknownFormat
from asyncrl.run.folder.labels import Labels
from asyncrl.run.folder.run_folder import RunFolder
from asyncrl.run.measures.event_log import last_event, read_end
from asyncrl.run.measures.events import EvaluationDone, StepDone
from asyncrl.run.measures.summary import PlayedEvaluation, Summary

RUNNING, KILLED, UNREADABLE = "running", "killed", "unreadable"
_STEPS = re.compile(rb"^steps: (\d+)$", re.MULTILINE)
_LAUNCHED = re.compile(r"-(\d{8}T\d{6}Z)(?:-\d+)?$")


class RunRow(msgspec.Struct, frozen=True, kw_only=True):
    """One run.

    Attributes:
        run: its folder, as it was looked for.
        launched: when, as ISO 8601.
        status: ``running``; how it ended; ``killed`` if it, or its last resume, did not end in order; or ``unreadable`` if
            another version of asyncrl wrote how.
        step, steps: training steps done, and in all.
        reward: mean training reward of its last steps; of the last one while it goes on.
        evaluation: reward of its last evaluation.
        changed: the changes of its recipe that it was launched with.
    """

    run: str
    name: str
    launched: str
    status: str
    step: int
    steps: int
    reward: float | None
    evaluation: float | None
    recipe: str
    changed: tuple[str, ...]
    tags: tuple[str, ...]
    note: str
    reason: str


def run_folders(place: Path) -> Iterator[Path]:
    """Yield the run folders in a folder, which may be one itself.

    Raises:
        RecipeError: there is no such folder.
    """
    if not place.is_dir():
        raise RecipeError("", f"there is no folder {str(place)!r}", "name the folder that runs are in, run_dir of their recipes")
    found = [place] if (place / "recipe.yaml").is_file() else RunFolder.below(place)
    yield from (each for each in found if (each / "launched-in").is_file())  # models of an evaluation were not launched


def row_of(place: Path) -> RunRow:
    """Read one run's row; what cannot be read is left out of it."""
    folder, labels = RunFolder(place), Labels.read(place / "labels.json")
    running, ended, reason = folder.is_driven, KILLED, ""
    summary: Summary | None = None
    try:
        summary = Summary.read(folder.summary) if running else read_end(folder)
        ended, reason = str(summary.status), summary.reason
    except UnknownFormat as error:
        ended, reason = UNREADABLE, str(error)
    except (OSError, ValueError, RecursionError):
        pass
    step = None if summary is not None and not running else last_event(folder.events, StepDone)
    played: EvaluationDone | PlayedEvaluation | None = None
    if step is not None:
        played = last_event(folder.events, EvaluationDone)
        # The step knows one that lies too far back in the file; one that came before it may have been lost in a resume.
        if played is None or (step.progress.evaluation is not None and played.at < step.at):
            played = step.progress.evaluation
    done = 0 if summary is None else summary.steps
    return RunRow(
        run=str(place),
        name=place.name,
        launched=launched(place),
        status=RUNNING if running else ended,
        step=done if step is None else step.step,
        steps=_steps(folder.recipe),
        reward=step.reward if step is not None else None if summary is None else summary.reward.last,
        evaluation=played.reward if played is not None else None if summary is None else summary.evaluation.last,
        recipe=labels.recipe,
        changed=labels.overrides,
        tags=labels.tags,
        note=labels.note,
        reason="" if running else reason,
    )


def with_value(places: Sequence[Path], key: str, wanted: Sequence[Any]) -> list[Path]:
    """Return the run folders whose recipe has one of these values at a dotted key; recipes that cannot be read have none.

    Raises:
        RecipeError: there are recipes, and none has the key.
    """
    chosen, keys = list[Path](), set[str]()
    for place in places:
        values = dict(_sections_and_values(_recipe(place)))
        keys |= values.keys()
        if key in values and any(_is(values[key], each) for each in wanted):
            chosen.append(place)
    if keys and key not in keys:
        near = get_close_matches(key, keys, n=1)
        remedy = f"did you mean `{near[0]}`?" if near else "name one that a run's recipe.yaml has, such as learner.lr"
        raise RecipeError("--where", f"no recipe of these runs has the key {key!r}", remedy)
    return chosen


def _is(value: Any, wanted: Any) -> bool:
    """Whether two values are one; Python takes true for 1."""
    return isinstance(value, bool) is isinstance(wanted, bool) and bool(value == wanted)


def _recipe(place: Path) -> Mapping[str, Any]:
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        found: Any = yaml.load((place / "recipe.yaml").read_bytes(), Loader=loader)
    except (OSError, yaml.YAMLError):
        return {}
    return found if isinstance(found, Mapping) else {}


def _sections_and_values(section: Mapping[str, Any], place: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in section.items():
        yield f"{place}{name}", value
        if isinstance(value, Mapping):
            yield from _sections_and_values(value, f"{place}{name}.")


def sorted_rows(rows: Sequence[RunRow], by: str) -> list[RunRow]:
    """Sort rows by an attribute: texts from A to Z, times and numbers from the largest, and rows without a value last."""
    there = [row for row in rows if getattr(row, by) is not None]
    return sorted(there, key=lambda row: getattr(row, by), reverse=by not in ("name", "status")) + [
        row for row in rows if getattr(row, by) is None
    ]


def _steps(recipe: Path) -> int:
    try:
        found = _STEPS.search(recipe.read_bytes())
    except OSError:
        return 0
    return 0 if found is None else int(found[1])


def launched(place: Path) -> str:
    """Return when a run was launched, as ISO 8601.

    Raises:
        OSError: its folder is gone, or says nothing of that.
    """
    named = _LAUNCHED.search(place.name)
    if named is not None:
        return f"{datetime.strptime(named[1], '%Y%m%dT%H%M%SZ'):%Y-%m-%dT%H:%M:%SZ}"
    return f"{datetime.fromtimestamp((place / 'launched-in').stat().st_mtime, UTC):%Y-%m-%dT%H:%M:%SZ}"
