"""Shows a plan to the user."""

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from asyncrl.core.recipe.schema import BufferConfig, Recipe
from asyncrl.core.text import counted
from asyncrl.run.plan import Plan, Processes
from asyncrl.run.units import memory, quantity


def plan_view(plan: Plan, recipe: Recipe) -> RenderableType:
    """Return the tables of a plan (processes and memory, tasks, batch arithmetic, what was chosen), and its remarks."""
    said = plan.remarks if plan.inert is None else (plan.inert, *plan.remarks)
    remarks = [Text(f"Note: {remark}", "yellow") for remark in said]
    tables = [_processes(plan), _tasks(plan), _arithmetic(plan, recipe), *([_choices(plan)] if plan.choices else [])]
    return Group(*(part for table in tables for part in (table, Text())), *remarks)


def _processes(plan: Plan) -> Table:
    table = Table(
        title="Processes and expected memory", title_justify="left", border_style="dim", box=box.ROUNDED, show_footer=True
    )
    free = f"{memory(plan.machine.free)} free of {memory(plan.machine.memory)} here, {plan.machine.cores} cores"
    table.add_column("", footer="in all")
    table.add_column("count", justify="right")
    table.add_column("each", justify="right", footer=memory(plan.total_bytes))
    on_gpus = plan.machine.gpus > 0
    if on_gpus:
        table.add_column("GPUs", justify="right", footer=f"of {plan.machine.gpus}")
    table.add_column("what", footer=free)
    for process in plan.processes:
        gpus = [_gpus(process)] if on_gpus else []
        table.add_row(process.role, str(process.count), memory(process.each_bytes), *gpus, process.what)
    return table


def _gpus(process: Processes) -> str:
    """What each of the processes is given of the GPUs."""
    if not process.gpus:
        return ""
    return "a shared one" if process.gpus < 1 else f"{process.gpus:g} each"


def _tasks(plan: Plan) -> Table:
    table = Table(title="Tasks", title_justify="left", border_style="dim", box=box.ROUNDED)
    table.add_column("for")
    table.add_column("source", overflow="fold")
    table.add_column("tasks", justify="right")
    table.add_column("malformed rows left out", justify="right")
    for source in plan.sources:
        tasks = f"{source.tasks:,}" if source.counted else f"at most {source.tasks:,}"
        table.add_row(source.split, source.name, tasks, f"{source.skipped:,}" if source.skipped else "none")
    return table


def _choices(plan: Plan) -> Table:
    table = Table(title="Chosen for this machine", title_justify="left", show_header=False, border_style="dim", box=box.ROUNDED)
    for _ in range(3):
        table.add_column(overflow="fold")
    for choice in plan.choices:
        table.add_row(choice.key, str(choice.value), choice.reason)
    return table


def _arithmetic(plan: Plan, recipe: Recipe) -> Table:
    batch, buffer = recipe.batch, recipe.buffer
    greedy = "" if recipe.algorithm.greedy_sample is None else ", one of each greedy and not trained"
    table = Table(title="Arithmetic", title_justify="left", show_header=False, border_style="dim", box=box.ROUNDED)
    table.add_column(style="dim")
    table.add_column()
    table.add_row("model", f"{recipe.model.path}, about {quantity(plan.parameters)} parameters")
    table.add_row(
        "a training step trains on",
        f"{plan.episodes_per_step} episodes: {batch.groups_per_step} groups of {batch.group_size}{greedy}",
    )
    algorithm = recipe.algorithm
    parts = f"minibatches {algorithm.minibatches} x epochs {algorithm.epochs}"
    table.add_row(
        "and takes",
        f"{counted(algorithm.optimizer_steps, 'optimizer step')} ({parts}), then publishes one policy version",
    )
    table.add_row("the run trains on", f"{quantity(plan.episodes_in_all)} episodes in {recipe.steps} training steps")
    table.add_row(
        "outstanding at most",
        f"{plan.outstanding_groups} groups, (pipeline_depth {buffer.largest_depth} + 1) x {batch.groups_per_step}; "
        f"the engines have room for {plan.running_episodes} episodes",
    )
    table.add_row(
        "staleness",
        f"{_pace(buffer)}, never over {buffer.max_staleness} policy versions (on_stale: {buffer.on_stale})",
    )
    return table


def _pace(buffer: BufferConfig) -> str:
    if buffer.first_depth == buffer.largest_depth:
        return f"paced at {buffer.first_depth}"
    return f"paced at {buffer.first_depth} to {buffer.largest_depth}, the least that keeps learner or engines busy"
