"""Shows a replay: each step beside its record, and beside what it would have been, and the rows and tokens that carried it."""

from collections.abc import Callable, Iterator, Mapping, Sequence

from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from asyncrl.core.batch import BatchEpisode, RowName, SampleName
from asyncrl.core.episode import Episode
from asyncrl.core.measures.units import duration, memory
from asyncrl.core.trajectory import Trajectory
from asyncrl.episodes.visible import visible
from asyncrl.replay.comparison import Verdict
from asyncrl.replay.job import CarriedRow, CarriedToken
from asyncrl.replay.kept_steps import Start
from asyncrl.replay.replay import Replay, ReplayedStep
from learners.metrics import (
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
_STYLES = {Verdict.EQUAL: "green", Verdict.CLOSE: "green", Verdict.DIFFERENT: "bold red", Verdict.UNKNOWN: "dim"}
_BEFORE, _AFTER = 12, 4
"""Tokens of context shown before and after a token."""

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
    for step in done.steps:
        yield _step(step, changed.get(step.made.step), done.start)
        if step.rows or step.tokens:
            of_step = episodes(step)
            sources = {episode.name: episode for episode in step.batch.episodes}
            yield _rows(step.rows, of_step, sources)
            yield _tokens(step.tokens, of_step, decode)
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


def _step(step: ReplayedStep, changed: ReplayedStep | None, start: Start) -> Table:
    began = "the model that the run began with" if start.checkpoint is None else start.checkpoint.name
    title = f"Step {step.made.step}, replayed from {began}"
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
    said = Text(weights, _STYLES[weights])
    if compared is not None and compared.tolerance is not None and weights is Verdict.DIFFERENT:
        said = Text("not to the bit", "dim")
    table.add_row("weights", *fingerprints, said, *([] if changed is None else [changed.made.fingerprint or ""]))
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
    took = f"{duration(seconds)} of training (in the run {duration(in_run)}), {memory(done.steps[-1].peak_bytes)} a rank at most"
    total = len(compared)
    if equal == total:
        return Text(f"Bit-equal: loss, gradient norm and weights of {_steps(total)} are those recorded; {took}", "green")
    if held == total:
        tolerance = max(each.tolerance or 0.0 for each in compared)
        how = f"within {tolerance:g} of what was recorded" if tolerance else "nothing that was recorded differs"
        return Text(f"{_steps(total)}: {how} ({equal} bit-equal); {took}", "green" if tolerance else "")
    return Text(f"{_steps(total - held)} of {total} are not what was recorded; {took}", "bold red")


def _steps(count: int) -> str:
    return f"{count} step" if count == 1 else f"{count} steps"


def _rows(rows: Sequence[CarriedRow], episodes: Episodes, records: Mapping[SampleName, BatchEpisode]) -> Table:
    title = "Rows that carried the step, by the norm of their own gradient"
    table = Table(title=title, title_justify="left", border_style="dim", box=box.ROUNDED)
    for column in ("row", "gradient norm", "advantage", "reward", "its group's rewards", "tokens", "weight", "stale", "gap"):
        table.add_column(column, justify="left" if column in ("row", "its group's rewards") else "right", overflow="fold")
    table.add_column("task", overflow="fold")
    table.add_column("its last turn", overflow="fold")
    for row in rows:
        group = [each.reward for name, each in records.items() if name[0] == row.name[0]]
        episode = episodes[row.name[:2]]
        table.add_row(
            called(row.name),
            f"{row.norm:.4g}",
            f"{row.advantage:+.3g}",
            f"{records[row.name[:2]].reward:g}",
            " ".join(f"{reward:g}" for reward in group),
            str(row.tokens),
            f"{row.weight:.3g}",
            str(row.staleness),
            f"{row.gap:.2g}",
            Text(visible(str(episode.task_id))),
            str(len(episode.trajectories[row.name[2]].turns)),
        )
    return table


def _tokens(tokens: Sequence[CarriedToken], episodes: Episodes, decode: Callable[[list[int]], str]) -> Table:
    title = "Tokens that carried the step, by how hard the loss pulls at them"
    table = Table(title=title, title_justify="left", border_style="dim", box=box.ROUNDED)
    for column in ("row", "turn", "pull", "advantage", "ratio", "weight", "stale", "learner", "engine"):
        table.add_column(column, justify="left" if column == "row" else "right")
    table.add_column("text, with the token marked", overflow="fold")
    for token in tokens:
        trajectory = episodes[token.row[:2]].trajectories[token.row[2]]
        place = int(trajectory.loss_mask.nonzero()[0][token.number])
        table.add_row(
            called(token.row),
            str(1 + next(number for number, turn in enumerate(trajectory.turns) if turn.start <= place < turn.end)),
            f"{token.pull:.3g}",
            f"{token.advantage:+.3g}",
            f"{token.ratio:.3g}",
            f"{token.weight:.3g}",
            str(token.staleness),
            f"{token.learner:.3f}",
            f"{token.engine:.3f}",
            in_context(trajectory, place, decode),
        )
    return table


def in_context(trajectory: Trajectory, place: int, decode: Callable[[list[int]], str]) -> Text:
    """The text around a token, which is marked."""
    ids = trajectory.token_ids.tolist()
    parts = ids[max(0, place - _BEFORE) : place], [ids[place]], ids[place + 1 : place + 1 + _AFTER]
    before, token, after = (visible(decode(part)).replace("\n", "⏎") for part in parts)
    return Text.assemble((before, "dim"), (token or "∅", "bold reverse"), (after, "dim"))
