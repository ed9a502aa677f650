"""Shows a plan to the user."""

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from asyncrl.core.measures.units import memory, quantity
from asyncrl.core.recipe.knobs import value_of
from asyncrl.core.recipe.schema import Recipe
from asyncrl.core.recipe.section import AUTO
from asyncrl.core.recipe.tune import DEPTH
from asyncrl.core.text import pluralize
from asyncrl.run.dry_run.plan import Plan
from asyncrl.run.nodes.placement import Node
from asyncrl.run.nodes.process_memory import Processes
from asyncrl.run.publications.slices import WeightSlices

RANKS_SHOWN, WORKERS_SHOWN = 16, 8
"""Rows and columns of the table of weights."""


def plan_view(plan: Plan, recipe: Recipe) -> RenderableType:
    """Return the tables of a plan (processes, model, tasks, batch arithmetic, weights, what was chosen), and its remarks."""
    said = plan.remarks if plan.inert is None else (plan.inert, *plan.remarks)
    remarks = [Text(f"Note: {remark}", "yellow") for remark in said]
    weights = [made for slices in plan.slices for made in (_weights(slices), *([_merges(slices)] if slices.merges else []))]
    choices = [_choices(plan)] if plan.choices else []
    nodes = [_nodes(plan)] if plan.placed else []
    nodes += [_folders(plan)] if plan.folders else []
    model = [_model(plan)] if plan.facts else []
    tables = [_processes(plan), *nodes, *model, _tasks(plan), _arithmetic(plan, recipe), *weights, *choices]
    return Group(*(part for table in tables for part in (table, Text())), *remarks)


def _processes(plan: Plan) -> Table:
    table = Table(
        title="Processes and expected memory", title_justify="left", border_style="dim", box=box.ROUNDED, show_footer=True
    )
    where = "in the cluster" if plan.machine.cluster else "here"
    free = f"{memory(plan.machine.free)} free of {memory(plan.machine.memory)} {where}, {plan.machine.cores} cores"
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


def _nodes(plan: Plan) -> Table:
    """What goes to which node; nodes with the same parts in one row."""
    assert plan.machine.cluster is not None
    table = Table(title="Nodes", title_justify="left", border_style="dim", box=box.ROUNDED)
    for column in ("node", "has free", "takes"):
        table.add_column(column, overflow="fold")
    of_driver = plan.machine.cluster.driver
    alike: dict[tuple[str, str], list[str]] = {}
    for node in plan.machine.cluster.alive:
        counts = {part: places.count(node.id) for part, places in plan.placed.items()}
        parts = [f"{count} of {part}" for part, count in counts.items() if count]
        parts += ["the driver and the buffer"] * (node.id == of_driver)
        alike.setdefault((_free(node), ", ".join(parts) or "nothing"), []).append(node.host)
    for (free, taken), hosts in alike.items():
        table.add_row(hosts[0] if len(hosts) == 1 else f"{len(hosts)} nodes, {hosts[0]} to {hosts[-1]}", free, taken)
    return table


def _folders(plan: Plan) -> Table:
    """What other nodes have of the folders of this machine."""
    table = Table(title="Folders of this machine", title_justify="left", border_style="dim", box=box.ROUNDED)
    for column in ("folder", "path", "on the run's other nodes"):
        table.add_column(column, overflow="fold")
    for folder in plan.folders:
        elsewhere = f"not on {', '.join(folder.blind)}: {folder.instead}" if folder.blind else "the same"
        table.add_row(folder.name, str(folder.path), elsewhere)
    return table


def _free(node: Node) -> str:
    shown = [f"{node.free.get(name, 0):g} {name}" for name in ("GPU", "CPU") if name in node.has]
    return ", ".join([*shown, f"{memory(node.free.get('memory', 0))} of memory"])


def _gpus(process: Processes) -> str:
    """What each of the processes is given of the GPUs."""
    if not process.gpus:
        return ""
    return "a shared one" if process.gpus < 1 else f"{process.gpus:g} each"


def _model(plan: Plan) -> Table:
    """What the model's folder holds."""
    table = Table(title="Model", title_justify="left", show_header=False, border_style="dim", box=box.ROUNDED)
    table.add_column(style="dim")
    table.add_column(overflow="fold")
    for fact in plan.facts:
        table.add_row(fact.topic, Text(fact.found))
    return table


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


def _weights(slices: WeightSlices) -> Table:
    """Bytes of a publication from each learner rank to each worker of an engine."""
    table = Table(
        title=f"Weights to an engine ({', '.join(slices.pools)})",
        title_justify="left",
        border_style="dim",
        box=box.ROUNDED,
    )
    workers = len(slices.padded)
    shown = range(min(workers, WORKERS_SHOWN))
    table.add_column("from learner rank")
    for worker in shown:
        table.add_column(f"engine worker {worker}", justify="right")
    if workers > len(shown):
        table.add_column(f"{workers - len(shown)} more engine workers", justify="right")
    sending = {rank: row for rank, row in enumerate(slices.moved) if any(row)}
    for rank, row in list(sending.items())[:RANKS_SHOWN]:
        table.add_row(str(rank), *_bytes_to(row, len(shown)))
    if len(sending) > RANKS_SHOWN:
        more = list(sending.values())[RANKS_SHOWN:]
        table.add_row(f"{len(more)} more ranks", *_bytes_to(tuple(map(sum, zip(*more, strict=True))), len(shown)))
    if silent := len(slices.moved) - len(sending):
        table.add_row(
            f"{pluralize(silent, 'replica')}", *(["nothing"] * len(shown)), *(["nothing"] if workers > len(shown) else [])
        )
    return table


def _merges(slices: WeightSlices) -> Table:
    """How the parameters of a worker are made that are not whole tensors of one rank."""
    table = Table(title="Cut and merged on the way", title_justify="left", border_style="dim", box=box.ROUNDED)
    table.add_column("parameter of an engine worker", overflow="fold")
    table.add_column("made of", overflow="fold")
    table.add_column("slices", justify="right")
    for merge in slices.merges:
        tensors = ", ".join(name.rsplit(".", 2)[-2] for name in merge.tensors)
        name = merge.parameter.removeprefix("model.layers.*.")
        table.add_row(name, f"a part of {tensors}" if merge.divided else tensors, str(merge.pieces))
    return table


def _bytes_to(row: tuple[int, ...], shown: int) -> list[str]:
    """The bytes to each worker that has a column, and to all others together."""
    others = row[shown:]
    return [_size(size) for size in (*row[:shown], *([sum(others)] if others else []))]


def _size(size: int) -> str:
    return memory(size) if size >= 1 << 20 else f"{size / 1024:,.0f} KiB"


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
        f"{pluralize(algorithm.optimizer_steps, 'optimizer step')} ({parts}), then publishes one policy version",
    )
    if recipe.sampling.stop:
        named = " or ".join(f"token {each}" if isinstance(each, int) else repr(each) for each in recipe.sampling.stop)
        kept = "what was sampled up to there is kept, trained and read by the environment, and the template's own end follows"
        table.add_row("a turn ends too at", f"{named}; {kept}")
    table.add_row("the run trains on", f"{quantity(plan.episodes_in_all)} episodes in {recipe.steps} training steps")
    table.add_row(
        "outstanding at most",
        f"{plan.outstanding_groups} groups, (pipeline_depth {recipe.largest_depth} + 1) x {batch.groups_per_step}; "
        f"the engines have room for {plan.running_episodes} episodes",
    )
    table.add_row(
        "staleness",
        f"{_pace(recipe)}, never over {buffer.max_staleness} policy versions (on_stale: {buffer.on_stale})",
    )
    if recipe.tune is not None:
        bounds = {knob: f"{least} to {most}" for knob, (least, most) in recipe.tune.knobs.items()}
        table.add_row("tuned", "; ".join(f"{knob} from {value_of(recipe, knob)}, in {within}" for knob, within in bounds.items()))
    table.add_row("new weights travel by", plan.weight_routes)
    table.add_row("kept, to be replayed", plan.kept)
    if plan.adapters is not None:
        held = pluralize(plan.adapters.versions, "version")
        table.add_row("a publication brings", f"adapters alone, {_size(plan.adapter_bytes)}; an engine holds {held} of them")
    return table


def _pace(recipe: Recipe) -> str:
    buffer = recipe.buffer
    if recipe.tune is not None and DEPTH in recipe.tune.knobs:
        least, most = recipe.tune.knobs[DEPTH]
        return f"paced at {least} to {most}, as tune turns it"
    if buffer.pipeline_depth != AUTO or buffer.largest_depth < 2:
        return f"paced at {buffer.largest_depth}"
    return f"paced at 1 to {buffer.largest_depth}, the least that keeps learner or engines busy"
