"""Shows a replay: each step beside its record, and beside what it would have been, and the rows and tokens that carried it."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence

from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from asyncrl.core.batch import RowName, SampleName
from asyncrl.core.episode import Episode
from asyncrl.core.measures.units import duration, memory
from asyncrl.core.text import pluralize
from asyncrl.core.trajectory import Trajectory
from asyncrl.episodes.visible import visible
from asyncrl.learners.metrics import (
    CLIP_FRACTION,
    EFFECTIVE_SAMPLE_SIZE,
    ENTROPY,
    GRAD_NORM,
    IMPORTANCE_WEIGHT,
    LEARNING_RATE,
    LOGPROB_GAP,
    POLICY_LOSS,
    STEP_SECONDS,
    TOKENS,
)
from asyncrl.replay.comparison import Comparison, Verdict
from asyncrl.replay.job import CarriedToken
from asyncrl.replay.kept_steps import Start, spans
from asyncrl.replay.odd_rewards import odd_rewards
from asyncrl.replay.replay import Replay, ReplayedStep

SHOWN = (
    POLICY_LOSS,
    GRAD_NORM,
    LEARNING_RATE,
    TOKENS,
    IMPORTANCE_WEIGHT,
    EFFECTIVE_SAMPLE_SIZE,
    CLIP_FRACTION,
    LOGPROB_GAP,
    ENTROPY,
)
"""The readings that are shown of a step."""
IN_FULL = 3
"""More steps, of which nothing further was asked, have a line each."""
_STYLES = {Verdict.EQUAL: "green", Verdict.CLOSE: "green", Verdict.DIFFERENT: "bold red", Verdict.UNKNOWN: "dim"}
_BEFORE, _AFTER = 12, 4
"""Tokens of context shown before and after a token."""
_TEXT = 100
"""The most characters shown of a turn, and before and after a token."""

Episodes = Mapping[SampleName, Episode]


def replay_view(
    done: Replay, episodes: Callable[[ReplayedStep], Episodes], decode: Callable[[list[int]], str]
) -> Iterator[RenderableType]:
    """Yield what to print of a replay.

    Args:
        episodes: reads the episodes that a step's rows and tokens are in.
        decode: makes text of token ids.
    """
    for remark in done.remarks:
        yield Text(f"Note: {remark}", "yellow")
    changed = {each.made.step: each for each in done.changed or ()}
    in_full = len(done.steps) <= IN_FULL or done.looked_at or changed
    if not in_full:
        yield _all_steps(done)
    for step in done.steps if in_full else ():
        if step.diverged:
            yield Text(f"Step {step.made.step} diverges: {step.diverged}", "bold red")
        other = changed.get(step.made.step)
        if other is not None and other.diverged:
            yield Text(f"With the changes, step {step.made.step} diverges: {other.diverged}", "bold red")
        yield _step(step, other, done.start)
        if step.rows or step.tokens:
            of_step = episodes(step)
            for name, reward in odd_rewards(step.batch).items():
                yield Text(
                    f"The reward of row {called((*name, 0))}, {reward:g}, stands out from all others of the step", "bold red"
                )
            yield _rows(step, of_step, decode)
            yield _tokens("Tokens that carried the step, by how hard the loss pulls at them", step.tokens, of_step, decode)
        if step.gaps:
            yield _tokens("Tokens where learner and engine differ most", step.gaps, episodes(step), decode)
            yield _gap_by(step.gap_by, step.gap_cause)
    if done.steps:
        yield _sum(done)
    if done.stopped is not None:
        yield Text(
            f"The hook stopped the replay in step {done.stopped.step}" + (f": {done.stopped.why}" if done.stopped.why else "")
        )


def called(name: RowName) -> str:
    """What a row is called here and after ``--without``: group/sample, and /part of a later trajectory."""
    group, sample, part = name
    return f"{group}/{sample}/{part}" if part else f"{group}/{sample}"


def _all_steps(done: Replay) -> Table:
    table = Table(title=f"Replayed from {_began(done.start)}", title_justify="left", border_style="dim", box=box.ROUNDED)
    table.add_column("step", justify="right")
    for column in ("loss", "gradient norm", "weights"):
        table.add_column(column, justify="right")
        table.add_column("")
    for step in done.steps:
        compared = step.comparison
        verdicts = [Verdict.UNKNOWN] * 3 if compared is None else [compared.loss, compared.grad_norm, compared.weights]
        values = [_number(step.made, POLICY_LOSS.name), _number(step.made, GRAD_NORM.name), step.made.fingerprint or ""]
        cells = [cell for value, verdict in zip(values, verdicts, strict=True) for cell in (value, _said(verdict, compared))]
        table.add_row(str(step.made.step), *cells)
    return table


def _began(start: Start) -> str:
    return "the model that the run began with" if start.checkpoint is None else start.checkpoint.name


def _said(verdict: Verdict, compared: Comparison | None) -> Text:
    if compared is not None and compared.tolerance is not None and verdict is Verdict.DIFFERENT and verdict is compared.weights:
        return Text("not to the bit", "dim")
    return Text(verdict, _STYLES[verdict])


def _step(step: ReplayedStep, changed: ReplayedStep | None, start: Start) -> Table:
    title = f"Step {step.made.step}, replayed from {_began(start)}"
    table = Table(title=title, title_justify="left", border_style="dim", box=box.ROUNDED)
    table.add_column("")
    table.add_column("recorded", justify="right")
    table.add_column("replayed", justify="right")
    table.add_column("")
    if changed is not None:
        table.add_column("with the changes", justify="right")
    compared = step.comparison
    verdicts = {} if compared is None else {POLICY_LOSS: compared.loss, GRAD_NORM: compared.grad_norm}
    for metric in SHOWN:
        values = [_number(each, metric.name) for each in (step.recorded, step.made)]
        verdict = verdicts.get(metric)
        said = Text(verdict, _STYLES[verdict]) if verdict is not None else Text("")
        table.add_row(metric.name, *values, said, *([] if changed is None else [_number(changed.made, metric.name)]))
    fingerprints = ["" if each is None else each.fingerprint or "" for each in (step.recorded, step.made)]
    weights = Verdict.UNKNOWN if compared is None else compared.weights
    table.add_row(
        "weights", *fingerprints, _said(weights, compared), *([] if changed is None else [changed.made.fingerprint or ""])
    )
    return table


def _number(made: object, name: str) -> str:
    readings = getattr(made, "readings", {})
    return f"{readings[name]:.9g}" if name in readings else ""


def _sum(done: Replay) -> Text:
    """Say in one sentence how the replay compares, and what it took."""
    compared = [step.comparison for step in done.steps if step.comparison is not None]
    equal, held = sum(each.is_equal for each in compared), sum(each.holds for each in compared)
    seconds = sum(step.made.readings.get(STEP_SECONDS.name, 0.0) for step in done.steps)
    in_run = sum(step.recorded.readings.get(STEP_SECONDS.name, 0.0) for step in done.steps if step.recorded is not None)
    looked = ", each row's own gradient included" if done.looked_at else ""
    within = f"{memory(done.steps[-1].peak_bytes)} a rank at most"
    took = f"{duration(seconds)} of training{looked} (in the run {duration(in_run)}), {within}"
    total = len(compared)
    if not total:
        return Text(f"No step came to its end; {within}")
    if unknown := [step.made.step for step in done.steps if step.comparison is not None and step.recorded is None]:
        lacking = f"Nothing is recorded of step {spans(unknown)}, so nothing is compared there"
        differs = f"; {pluralize(total - held, 'other')} of {total} are not what was recorded" if held < total else ""
        return Text(f"{lacking}{differs}; {took}", "bold red" if differs else "yellow")
    if equal == total:
        return Text(
            f"Bit-equal: loss, gradient norm and weights of {pluralize(total, 'step')} are those recorded; {took}", "green"
        )
    if held == total:
        tolerance = max(each.tolerance or 0.0 for each in compared)
        how = f"within {tolerance:g} of what was recorded" if tolerance else "nothing that was recorded differs"
        return Text(f"{pluralize(total, 'step')}: {how} ({equal} bit-equal); {took}", "green" if tolerance else "")
    return Text(f"{pluralize(total - held, 'step')} of {total} are not what was recorded; {took}", "bold red")


def _rows(step: ReplayedStep, episodes: Episodes, decode: Callable[[list[int]], str]) -> Table:
    records, odd = {episode.name: episode for episode in step.batch.episodes}, odd_rewards(step.batch)
    table = _table("Rows that carried the step, by the norm of their own gradient", ("gradient", "advantage", "reward"))
    for row in step.rows:
        name = row.name[:2]
        episode, trajectory = episodes[name], episodes[name].trajectories[row.name[2]]
        others = [f"{each.reward:g}" for other, each in records.items() if other[0] == name[0] and other != name]
        last = trajectory.turns[-1] if trajectory.turns else None
        said = "" if last is None else decode(trajectory.token_ids[last.start : last.end].tolist())
        about = f"{visible(str(episode.task_id))}, {pluralize(len(trajectory.turns), 'turn')}, {pluralize(row.tokens, 'token')}"
        table.add_row(
            called(row.name),
            f"{row.norm:.4g}",
            f"{row.advantage:+.3g}",
            Text(f"{records[name].reward:g}", "bold red" if name in odd else ""),
            str(row.staleness),
            f"{row.gap:.2g}",
            Text.assemble((f"{about}; the others of its group {' '.join(others)}\n", "dim"), _short(visible(said))),
        )
    return table


def _gap_by(means: Mapping[str, tuple[float, int]], cause: str) -> Text:
    """Where the gap is, by staleness, turn and place, and what it probably comes from."""
    lines = [f"mean gap by {what}: {mean:.4g} ({count})" for what, (mean, count) in sorted(means.items(), key=_by_number)]
    return Text("\n".join([*lines, *([f"Likely cause: {cause}"] if cause else [])]))


def _by_number(item: tuple[str, tuple[float, int]]) -> tuple[str, int]:
    what, number = re.match(r"(\D+)(\d+)", item[0]).groups()  # type: ignore[union-attr]
    return what, int(number)


def _tokens(title: str, tokens: Sequence[CarriedToken], episodes: Episodes, decode: Callable[[list[int]], str]) -> Table:
    table = _table(title, ("turn", "pull", "advantage"))
    for token in tokens:
        trajectory = episodes[token.row[:2]].trajectories[token.row[2]]
        place = int(trajectory.loss_mask.nonzero()[0][token.number])
        table.add_row(
            called(token.row),
            str(1 + next(number for number, turn in enumerate(trajectory.turns) if turn.start <= place < turn.end)),
            f"{token.pull:.2g}",
            f"{token.advantage:+.3g}",
            str(token.staleness),
            f"{token.learner - token.engine:+.2g}",
            in_context(trajectory, place, decode),
        )
    return table


def _table(title: str, columns: Sequence[str]) -> Table:
    table = Table(title=title, title_justify="left", border_style="dim", box=box.ROUNDED)
    table.add_column("row", no_wrap=True)
    for column in (*columns, "stale", "gap"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("text", overflow="fold")
    return table


def _short(text: str) -> str:
    """The end of a text, in one line."""
    line = " ".join(text.split())
    return line if len(line) <= _TEXT else f"…{line[-_TEXT:]}"


def in_context(trajectory: Trajectory, place: int, decode: Callable[[list[int]], str]) -> Text:
    """The text around a token, which is marked."""
    ids = trajectory.token_ids.tolist()
    parts = ids[max(0, place - _BEFORE) : place], [ids[place]], ids[place + 1 : place + 1 + _AFTER]
    before, token, after = (" ".join(visible(decode(part)).splitlines()) for part in parts)
    before = before if len(before) <= _TEXT else f"…{before[-_TEXT:]}"  # tokens of some models are whole phrases
    after = after if len(after) <= _TEXT else f"{after[:_TEXT]}…"
    return Text.assemble((before, "dim"), (token or "∅", "bold reverse"), (after, "dim"))
