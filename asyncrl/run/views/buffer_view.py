"""Shows a report on a replay buffer to the user."""

from collections.abc import Iterator

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from asyncrl.buffers.inspection import BufferReport, LengthBin
from asyncrl.buffers.ledger import TaskState, TrajectoryState
from asyncrl.core.measures.buffer_statistics import GroupState
from asyncrl.core.measures.units import duration, memory, percent, quantity
from asyncrl.core.text import first_few

BAR = 24
"""The length of the longest bar, in characters."""
TASKS_NAMED = 5
"""How many filtered tasks are named; of the rest only the number is shown."""


def buffer_view(report: BufferReport) -> RenderableType:
    """Return the report as tables (ledger, groups held, why groups were left out, lengths, sources), then remarks."""
    parts: list[RenderableType] = [_ledger(report)]
    if report.held:
        parts.append(_held(report))
    if report.ledger.reasons:
        parts.append(_reasons(report))
    if report.lengths:
        parts.append(_lengths(report.lengths))
    parts += [_sources(report), *_remarks(report)]
    return Group(*parts)


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", border_style="dim", box=box.ROUNDED)
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number else "left")
    return table


def _ledger(report: BufferReport) -> Table:
    ledger = report.ledger
    states = [*GroupState, TaskState.WAITING, TrajectoryState.MISSING]
    table = _table(f"Issued up to policy version {report.version}", "", "groups", "episodes", "tasks drawn")
    for state in ("issued", *(state.value for state in states)):
        cells = [getattr(counts, state, None) for counts in (ledger, ledger.trajectories, ledger.tasks)]
        table.add_row(state, *("-" if cell is None else f"{cell:,}" for cell in cells))
    return table


def _held(report: BufferReport) -> Table:
    table = _table("Held", "born at version", "staleness now", "state", "groups", "oldest for")
    for held in report.held:
        table.add_row(str(held.version), str(held.staleness), held.state.value, f"{held.groups:,}", duration(held.age_s))
    return table


def _reasons(report: BufferReport) -> Table:
    table = _table("Why groups failed, expired or were filtered", "reason", "groups", "last case")
    table.columns[2].justify = "left"
    for why, count in sorted(report.ledger.reasons.items(), key=lambda item: -item[1]):
        table.add_row(why, f"{count:,}", Text(report.ledger.examples.get(why, "")))
    return table


def _lengths(lengths: tuple[LengthBin, ...]) -> Table:
    table = _table("Lengths: finished against trained", "tokens", "", "episodes and their share")
    table.columns[1].justify = table.columns[2].justify = "left"
    longest = max(max(row.share_issued, row.share_trained) for row in lengths)
    for row in lengths:
        bars = Text.assemble((_bar(row.share_issued / longest), "dim"), "\n", (_bar(row.share_trained / longest), "cyan"))
        shares = f"{row.issued:,} finished, {percent(row.share_issued)}\n{row.trained:,} trained, {percent(row.share_trained)}"
        table.add_row(f"{row.shortest:,} to {row.longest:,}", bars, shares)
    return table


def _bar(share: float) -> str:
    return "█" * round(share * BAR) or ("▏" if share else "")


def _sources(report: BufferReport) -> Table:
    table = _table("Sources of tasks", "source", "drawn", "malformed rows skipped")
    for source in report.sources:
        table.add_row(Text(source.name), f"{source.drawn:,}", f"{source.skipped:,}")
    return table


def _remarks(report: BufferReport) -> Iterator[Text]:
    yield Text(
        f"Payload: {memory(report.payload_bytes)} held; {report.kept_batches} batches kept until the next checkpoint, "
        f"with {memory(report.kept_bytes)} more"
    )
    stale = report.stale_tokens
    if stale.masked or stale.dropped:
        yield Text(
            f"Over the staleness bound: {quantity(stale.masked)} tokens masked, {quantity(stale.dropped)} dropped", "yellow"
        )
    if report.filtered_tasks:
        yield Text(f"Tasks that break their environment: {first_few(report.filtered_tasks, TASKS_NAMED)}", "yellow")
    if report.too_long:
        left_out = ", ".join(f"{count:,} of {source}" for source, count in report.too_long.items())
        met = f"; met when they were played: {first_few(report.too_long_tasks, TASKS_NAMED)}" if report.too_long_tasks else ""
        yield Text(f"Tasks left out because their prompts leave no room for a turn: {left_out}{met}", "yellow")
    if report.late_samples:
        yield Text(f"Handed in too late, when nobody waited for them any more: {report.late_samples:,} episodes")
    if report.lost_trajectories:
        yield Text(
            f"Destroyed by crashes, and generated again unless already trained: {report.lost_trajectories:,} episodes",
            "yellow",
        )
