"""Plans what a run will consist of, before it starts: processes, batch arithmetic, memory.

Making a plan also checks what the recipe alone cannot show: that its model, tasks, environment and tool parser exist, that
the environment can play a task of each source, that the model's files are whole and suitable, and that prompts fit. What always
holds: what a launch would refuse before its first training step, the plan refuses, as far as this machine can know.
The memory is an estimate, good enough to tell a run that fits from one that does not.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from asyncrl.buffers.sampling import make_sampler
from asyncrl.buffers.tasks.task_files import remarks_on_rows
from asyncrl.buffers.tasks.task_stream import TaskSource
from asyncrl.core.adapters import AdapterSettings
from asyncrl.core.errors import RecipeError
from asyncrl.core.measures.units import memory
from asyncrl.core.recipe.buffer import AppendOnlyJournalConfig
from asyncrl.core.recipe.generators import MAIN_POOL
from asyncrl.core.recipe.rules.advice import conflicts
from asyncrl.core.recipe.rules.inert import inert
from asyncrl.core.recipe.rules.placement import pool_place
from asyncrl.core.recipe.schema import Recipe
from asyncrl.core.recipe.tasks import GeneratedTasksConfig
from asyncrl.envs.load import check_members
from asyncrl.generators.vllm.engine_arguments import check_cpu_arguments, check_engine_arguments
from asyncrl.generators.vllm.vllm_parsers import check_parsers
from asyncrl.learners.supported_model import check_megatron, fp8_refusal
from asyncrl.run.buffer.tasks import Split, load_sources, make_task_stream
from asyncrl.run.dry_run.disk_of_kept_steps import how_to_keep_some, kept_steps
from asyncrl.run.dry_run.environment_trial import play_first_tasks
from asyncrl.run.dry_run.judge_check import check_judges
from asyncrl.run.dry_run.model_check import ModelCheck
from asyncrl.run.dry_run.prompt_lengths import TooLong
from asyncrl.run.dry_run.room_to_tune import room_to_tune
from asyncrl.run.dry_run.sent_between_nodes import sent_between_nodes, sent_in_engines
from asyncrl.run.dry_run.weight_routes import full_nodes, weight_routes
from asyncrl.run.models.further_models import check_reference
from asyncrl.run.models.model_facts import Fact
from asyncrl.run.models.model_shape import ELEMENT_BYTES, ModelShape, check_attention, check_cache, check_sizes, read_shape
from asyncrl.run.models.model_weights import check_model_weights
from asyncrl.run.nodes.certificates import check_network
from asyncrl.run.nodes.cluster_nodes import Nodes
from asyncrl.run.nodes.machine import Machine
from asyncrl.run.nodes.placement import Node, NoRoom, Part, place, place_what_fits
from asyncrl.run.nodes.process_kinds import LEARNER, parts_of, remedies
from asyncrl.run.nodes.process_memory import (
    Processes,
    beside_learner,
    gpu_bytes,
    outstanding_groups,
    preemptions,
    processes_of,
    sizes_of,
)
from asyncrl.run.nodes.shared_folders import FolderOnNodes, OtherNodes, ask_other_nodes
from asyncrl.run.publications.slices import WeightSlices, weight_slices
from asyncrl.run.recipe.automatic import Choice
from asyncrl.run.storage.upload_places import check_addresses
from asyncrl.run.tiny.lessons import remarks_on
from asyncrl.run.tracking.further_trackers import check_further_trackers
from asyncrl.run.tracking.tracking_check import check_tracking

CHECKED_TASKS = 20_000
"""If an environment makes its tasks, the plan makes and checks at most this many, so that it is ready at once."""

LEFT_OUT = (
    "such tasks are left out, those that were not looked at when they are met; raise model.max_context, or set "
    "tasks.too_long=refuse to be refused"
)
"""What becomes of tasks whose prompts are too long."""

_Splits = tuple[tuple[Split, Sequence[TaskSource]], ...]
"""Each split with its sources."""


class Source(msgspec.Struct, frozen=True):
    """A source of tasks, read and checked.

    Attributes:
        split: what its tasks are for.
        name: the source's name; see :func:`asyncrl.buffers.tasks.task_stream.source_names`.
        tasks: how many tasks it has.
        skipped: how many malformed rows were left out.
        counted: False if there may be fewer, because the environment makes them and the plan made only the first of them.
    """

    split: Split
    name: str
    tasks: int
    skipped: int
    counted: bool = True


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What a run will consist of.

    Attributes:
        processes: the run's processes, in the order in which experience passes through them.
        sources: the sources of tasks, training first.
        too_long: the tasks that are left out because their prompts leave no room for a turn.
        parameters: number of the model's weights.
        facts: what the model's folder holds; none of the tiny model while it has not been made.
        episodes_per_step: what one training step trains on.
        episodes_in_all: what the whole run trains on.
        outstanding_groups: groups that may be generated or waiting at any time.
        running_episodes: episodes that all engines together have room for.
        weight_routes: how publications reach the engines.
        slices: what a publication moves from each learner rank to each worker of an engine, if it brings whole weights.
        adapters: what engines need to know of the adapters, if these alone are published.
        adapter_bytes: the size of a publication that brings adapters alone.
        machine: the machine or cluster that the plan was made for.
        placed: the ids of the nodes of each part's processes in a cluster; empty on one machine.
        folders: what other nodes have of this machine's folders; empty if the run uses no other.
        choices: the values chosen for keys of the recipe that were ``auto``.
        kept: what is kept of the steps, to be replayed, and what that takes of the disk.
        inert: which keys of the recipe have no effect; see :func:`asyncrl.core.recipe.rules.inert.inert`.
        remarks: what is allowed but probably not meant.
    """

    processes: tuple[Processes, ...]
    sources: tuple[Source, ...]
    too_long: tuple[TooLong, ...]
    parameters: int
    facts: tuple[Fact, ...]
    episodes_per_step: int
    episodes_in_all: int
    outstanding_groups: int
    running_episodes: int
    weight_routes: str
    slices: tuple[WeightSlices, ...]
    adapters: AdapterSettings | None
    adapter_bytes: int
    machine: Machine
    placed: Mapping[str, list[str]]
    folders: tuple[FolderOnNodes, ...]
    choices: tuple[Choice, ...]
    kept: str
    inert: str | None
    remarks: tuple[str, ...]

    @property
    def total_bytes(self) -> int:
        """Memory of all processes together."""
        return sum(process.count * process.each_bytes for process in self.processes)


def make_plan(
    recipe: Recipe,
    machine: Machine | None = None,
    choices: Sequence[Choice] = (),
    note: Callable[[str], None] = lambda text: None,
    run: Path | None = None,
) -> Plan:
    """Plan a run of ``recipe`` on a machine, by default this one.

    Args:
        choices: those of the recipe's values that were chosen for the machine.
        note: shows the user a line while the environment takes long to play a task.
        run: the folder of a run that is resumed.

    Raises:
        RecipeError: this machine has too few GPUs; a folder that nodes must share is not shared; the model, the tasks, the
            environment, the tool parser or a class that the recipe names is missing; they do not fit together; or the environment
            breaks when a task is played.
    """
    customs, shape = _check_recipe(recipe, resumed=run is not None)
    machine = machine or Machine.here()

    def place_all(of: Recipe) -> tuple[dict[str, list[str]], tuple[str, ...]]:
        sizes = sizes_of(of, shape) if machine.cluster is not None and not machine.gpus else None
        return place_on(machine, of, parts_of(of, on_gpus=machine.gpus > 0, sizes=sizes))

    placed, lacking = place_all(recipe)
    transport, routes = weight_routes(recipe, machine, shape, placed, run)
    ways = transport.describe(routes) if placed[LEARNER] else "what the nodes allow that the learner's ranks will get"
    others = OtherNodes() if machine.cluster is None else ask_other_nodes(recipe, placed, machine.cluster, run)
    check_attention(shape, recipe.learner, recipe.generators.by_pool, on_gpus=machine.gpus > 0)
    if not machine.gpus:
        _check_on_cpu(recipe, shape)
    greedy = recipe.algorithm.greedy_sample is not None
    episodes = recipe.batch.groups_per_step * (recipe.batch.group_size - greedy)
    splits: _Splits = (
        ("train", make_task_stream(recipe, CHECKED_TASKS).sources),
        ("evaluation", load_sources(recipe, "evaluation", CHECKED_TASKS)),
    )
    skipped = [remark for split, sources in splits for remark in remarks_on_rows(sources, split)]
    check_model_weights(recipe)
    check_parsers(recipe.model.tool_parser, recipe.model.reasoning_parser)  # a parser of a plug-in takes seconds
    with ModelCheck(recipe, shape) as model:
        rehearsed = play_first_tasks(recipe, splits, note)
        tried = model.tried(rehearsed, note)
    too_long = tuple(_known(recipe, each) for each in tried.too_long)
    played = (*skipped, *rehearsed.remarks, *remarks_on(recipe), *tried.remarks, *(f"{each}; {LEFT_OUT}" for each in too_long))
    lora, adapters = recipe.learner.lora, AdapterSettings.of(recipe)
    plan = Plan(
        processes=_with_gpus(recipe, machine, shape),
        sources=tuple(_describe(recipe, splits)),
        too_long=too_long,
        parameters=shape.parameters,
        facts=tried.facts,
        episodes_per_step=episodes,
        episodes_in_all=episodes * recipe.steps,
        outstanding_groups=outstanding_groups(recipe),
        running_episodes=sum(pool.count * pool.max_running for pool in recipe.generators.training.values()),
        slices=() if adapters is not None else weight_slices(recipe, shape),
        adapters=adapters,
        adapter_bytes=0 if lora is None else shape.adapter_parameters(lora) * ELEMENT_BYTES[recipe.learner.dtype],
        machine=machine,
        placed=placed if machine.cluster is not None else {},
        folders=others.folders,
        choices=tuple(choices),
        kept=kept_steps(recipe, shape),
        inert=inert(recipe),
        weight_routes=ways,
        remarks=(),
    )
    full = full_nodes(transport, routes, others.free_memory) if placed[LEARNER] else ()
    remarks = (*_remarks(recipe, shape, plan), *full, *room_to_tune(recipe, shape, machine, place_all))
    return msgspec.structs.replace(plan, remarks=(*lacking, *played, *conflicts(recipe), *customs, *remarks))


def _check_recipe(recipe: Recipe, *, resumed: bool) -> tuple[list[str], ModelShape]:
    """Check what does not depend on the machine; return what is remarked of the classes that the recipe names, and the model."""
    if recipe.algorithm.loss.imitates:
        problem = "cross_entropy imitates every episode that is played, good or bad"
        remedy = "train on chosen episodes with `asyncrl train-offline`, or set another loss"
        raise RecipeError("algorithm.loss.kind", problem, remedy)
    check_addresses(recipe)
    check_tracking(recipe, resumed=resumed)
    check_further_trackers(recipe.tracking)
    check_megatron()
    check_members(recipe.environment, os.environ)
    for name, pool in recipe.generators.by_pool.items():
        check_engine_arguments(pool.engine, pool_place(name))
    customs = _try_customs(recipe)
    make_sampler(recipe.buffer, {})  # checks the class and its options; the weights of the sources do not matter
    shape = read_shape(recipe.model.path)
    check_sizes(shape, recipe.model, recipe.learner, recipe.generators.by_pool)
    check_reference(recipe, shape)
    check_judges(recipe)
    check_network(recipe.network, os.environ)
    return customs, shape


def _check_on_cpu(recipe: Recipe, shape: ModelShape) -> None:
    if recipe.learner.fp8 != "none":
        raise fp8_refusal(recipe.learner.fp8, "there is no GPU here")
    if recipe.algorithm.teacher is not None:
        check_cpu_arguments(recipe.algorithm.teacher.engine, "algorithm.teacher")
    for name, pool in recipe.generators.by_pool.items():
        check_cpu_arguments(pool.engine, pool_place(name))
        check_cache(shape, pool_place(name), pool, recipe.model.max_context)


def place_on(machine: Machine, recipe: Recipe, parts: Sequence[Part]) -> tuple[dict[str, list[str]], tuple[str, ...]]:
    """Find a place for each process of parts of a run.

    Returns:
        the ids of the nodes of each part's processes, see :func:`asyncrl.run.nodes.placement.place`; and what is missing in a
        cluster that may get more room, whose processes are not placed.

    Raises:
        NoRoom: there is no room; the error names what is missing and what would help.
    """
    nodes = machine.cluster
    if nodes is None:
        has = {"GPU": float(machine.gpus), "CPU": float(machine.cores), "memory": float(machine.memory)}
        nodes = Nodes((Node(id="", host="this machine", has=has, free=has),), driver="")
    further = tuple(remedies(recipe, joined=machine.cluster is not None, on_gpus=machine.gpus > 0))
    try:
        return place(parts, nodes.alive, nodes.driver, remedies=further), ()
    except NoRoom as no_room:
        seconds = recipe.deadlines.room
        if machine.cluster is None or not seconds:
            raise
        waits = f"a launch asks Ray for it, and waits at most {seconds:g} s (deadlines.room)"
        return place_what_fits(parts, nodes.alive, nodes.driver), (f"{no_room.place}: {no_room.problem}; {waits}",)


def _with_gpus(recipe: Recipe, machine: Machine, shape: ModelShape) -> tuple[Processes, ...]:
    """Return the processes of a run with the GPUs that each is given."""
    each = {part.name: part.each.get("GPU", 0) for part in parts_of(recipe, on_gpus=machine.gpus > 0)}
    return tuple(msgspec.structs.replace(process, gpus=each.get(process.part, 0)) for process in processes_of(recipe, shape))


def _try_customs(recipe: Recipe) -> list[str]:
    """Try the functions of the user's own on a made batch; returns remarks on them."""
    if not recipe.customs:
        return []
    from asyncrl.learners.custom.check import check_customs  # takes seconds: it needs torch

    return check_customs(recipe)


def _describe(recipe: Recipe, splits: _Splits) -> Iterator[Source]:
    """Describe the sources of tasks. Files were read whole; if the environment makes tasks, only the first were made."""
    for split, sources in splits:
        for source in sources:
            tasks = len(source.tasks)
            if isinstance(recipe.tasks, GeneratedTasksConfig) and tasks == CHECKED_TASKS < getattr(recipe.tasks, split):
                yield Source(split, source.name, getattr(recipe.tasks, split), source.skipped, counted=False)
            else:
                yield Source(split, source.name, tasks, source.skipped)


def _known(recipe: Recipe, found: TooLong) -> TooLong:
    """Return what was found as a run may use it: of an environment that makes more tasks than were looked at, without places."""
    made = getattr(recipe.tasks, found.split) if isinstance(recipe.tasks, GeneratedTasksConfig) else 0
    return msgspec.structs.replace(found, indexes=(), of=made) if found.of == CHECKED_TASKS < made else found


def _remarks_on_gpus(recipe: Recipe, shape: ModelShape, machine: Machine) -> Iterator[str]:
    """Remarks on what the run makes of this machine's GPUs."""
    if machine.idle_gpus:
        yield (
            f"GPUs of this machine that the run does not use: {machine.idle_gpus}; install asyncrl[gpu] in an environment of its "
            "own, and see docs/how-to/gpu.md"
        )
    if not machine.gpus:
        return
    if recipe.learner.dtype == "float32":
        yield (
            "learner.dtype float32 on GPUs: layers are Megatron's plain ones, without TransformerEngine, and matrix products do "
            "not use tensor cores; set learner.dtype=bfloat16, which keeps fp32 master weights, unless you compare numbers"
        )
    if machine.gpu_memory:
        learner, engine = gpu_bytes(recipe.learner, shape), beside_learner(recipe, shape, machine.gpu_memory)
        if learner + engine > machine.gpu_memory:
            beside = f" and {memory(engine)} for the engine beside it" if engine else ""
            yield (
                f"a learner rank needs about {memory(learner)} of GPU memory{beside}, and a GPU here has "
                f"{memory(machine.gpu_memory)}: lower learner.micro_batch_tokens or generators.gpu_memory_share, set "
                "learner.recompute=full, train adapters (learner.lora), or use more ranks"
            )


def _remarks(recipe: Recipe, shape: ModelShape, plan: Plan) -> tuple[str, ...]:
    remarks = list(_remarks_on_gpus(recipe, shape, plan.machine))
    if plan.machine.cluster is not None:
        pass  # the planner has seen that each node has room
    elif plan.total_bytes > plan.machine.memory:
        remarks.append(_beyond_the_machine(recipe, plan))
    elif plan.total_bytes > plan.machine.free:
        remarks.append(
            f"the run needs about {memory(plan.total_bytes)} of memory and {memory(plan.machine.free)} are free here: "
            "lower generators.count, generators.kv_cache_mb, learner.micro_batch_tokens or buffer.capacity_mb, or free some"
        )
    if isinstance(journal := recipe.buffer.journal, AppendOnlyJournalConfig) and journal.keep:
        more = how_to_keep_some(recipe, journal)
        remarks.append(f"to be replayed (docs/how-to/replay.md), the run keeps {plan.kept}{more}")
    training = sum(pool.count for pool in recipe.generators.training.values())
    if plan.outstanding_groups < training:
        remarks.append(
            f"at most {plan.outstanding_groups} groups are outstanding for {training} engines that train: "
            "some engines never have work; raise buffer.pipeline_depth or batch.groups_per_step"
        )
    if (sent := sent_between_nodes(recipe, shape, plan.placed.get(LEARNER, ()))) is not None:
        remarks.append(sent)
    remarks.extend(sent_in_engines(recipe, shape))
    if recipe.learner.context_parallel > 1:
        remarks.append(
            f"with learner.context_parallel {recipe.learner.context_parallel} the prompt that a group shares is computed once "
            "for each of its rows; with 1 it is computed once in a micro-batch"
        )
    remarks.extend(preemptions(recipe, shape, plan.machine))
    return tuple(remarks)


def _beyond_the_machine(recipe: Recipe, plan: Plan) -> str:
    """The remark that the machine is too small: what the run needs, what there is, and how many generators fit."""
    pools = [process for process in plan.processes if process.part in recipe.generators.by_pool]
    largest = max(pools, key=lambda pool: pool.count * pool.each_bytes)
    key = MAIN_POOL if largest.part == MAIN_POOL else f"{MAIN_POOL}.pools.{largest.part}"
    there, free = plan.machine.memory, plan.machine.free
    fitting = (there - plan.total_bytes + largest.count * largest.each_bytes) // largest.each_bytes
    smaller = f"{key}.kv_cache_mb or buffer.capacity_mb"
    remedy = f"lower {key}.count to {fitting}, {smaller}" if fitting > 0 else f"take a smaller model, lower {smaller}"
    return (
        f"the run needs about {memory(plan.total_bytes)}, and this machine has {memory(there)} in all, "
        f"of which {memory(free)} are free: it cannot hold the run by itself; {remedy}, or set RAY_ADDRESS to join a cluster"
    )
