"""Plans what a run will consist of, before it starts: processes, batch arithmetic, memory.

Making a plan also checks what the recipe alone cannot show: that its model, tasks, environment and tool parser exist, and that
the environment can play a task of each source.
The memory is an estimate, good enough to tell a run that fits from one that does not.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec

from asyncrl.core.recipe.conflicts import conflicts
from asyncrl.core.recipe.inert import inert
from asyncrl.core.recipe.reward import ModelReward, RewardConfig
from asyncrl.core.recipe.schema import GeneratedTasks, LearnerConfig, ModelConfig, Recipe
from asyncrl.envs.load import check_members
from asyncrl.run import gpus
from asyncrl.run.automatic import Choice
from asyncrl.run.certificates import check_network
from asyncrl.run.further_trackers import check_further_trackers
from asyncrl.run.machine import Machine
from asyncrl.run.model_shape import ELEMENT_BYTES, ModelShape, check_head_size, check_sizes, read_shape
from asyncrl.run.preflight import play_first_tasks
from asyncrl.run.reference_folder import check_reference
from asyncrl.run.reward_folder import read_reward_shape
from asyncrl.run.tasks import Split, load_sources, make_task_stream
from asyncrl.run.tiny_lessons import remarks_on
from asyncrl.run.units import memory, quantity
from buffers.sampling import make_sampler
from buffers.task_stream import TaskSource
from generators.engine_arguments import check_engine_arguments
from generators.vllm_parsers import check_parsers

DRIVER_BYTES = 500 << 20
"""The driver's process, with the clients of Ray and MLflow."""
RAY_BYTES = 1 << 30
"""Ray's own processes and its object store."""
BUFFER_BYTES = 300 << 20
"""The buffer's process without the trajectories it holds."""
ENGINE_BYTES = 3 * (750 << 20)
"""The three processes of one vLLM engine (front end, core, worker) without model and cache."""
LEARNER_BYTES = 600 << 20
"""A process with torch, Megatron and Ray, without the model."""
CHECKED_TASKS = 20_000
"""If an environment makes its tasks, the plan makes and checks at most this many, so that it is ready at once."""
TRAJECTORY_BYTES_A_TOKEN = 9

_Splits = tuple[tuple[Split, Sequence[TaskSource]], ...]
"""Each split with its sources."""


class Processes(msgspec.Struct, frozen=True):
    """``count`` equal processes of the run, the memory that each is expected to take, and the GPUs that it is given."""

    role: str
    count: int
    each_bytes: int
    what: str
    gpus: float = 0


class Source(msgspec.Struct, frozen=True):
    """A source of tasks, read and checked.

    Attributes:
        split: what its tasks are for.
        name: the source's name; see :func:`buffers.task_stream.source_names`.
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
        parameters: number of the model's weights.
        episodes_per_step: what one training step trains on.
        episodes_in_all: what the whole run trains on.
        outstanding_groups: groups that may be generated or waiting at any time.
        running_episodes: episodes that all engines together have room for.
        machine: the machine that the plan was made for.
        choices: the values chosen for keys of the recipe that were ``auto``.
        inert: which keys of the recipe have no effect; see :func:`asyncrl.core.recipe.inert.inert`.
        remarks: what is allowed but probably not meant.
    """

    processes: tuple[Processes, ...]
    sources: tuple[Source, ...]
    parameters: int
    episodes_per_step: int
    episodes_in_all: int
    outstanding_groups: int
    running_episodes: int
    machine: Machine
    choices: tuple[Choice, ...]
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
) -> Plan:
    """Plan a run of ``recipe`` on a machine, by default this one.

    Args:
        choices: those of the recipe's values that were chosen for the machine.
        note: shows the user a line while the environment takes long to play a task.

    Raises:
        RecipeError: this machine has too few GPUs; the model, the tasks, the environment, the tool parser or a class that the
            recipe names is missing; they do not fit together; or the environment breaks when a task is played.
    """
    check_further_trackers(recipe.tracking)
    check_members(recipe.environment, os.environ)
    check_engine_arguments(recipe.generators.engine)
    customs = _try_customs(recipe)
    make_sampler(recipe.buffer, {})  # checks the class and its options; the weights of the sources do not matter
    shape = read_shape(recipe.model.path)
    check_sizes(shape, recipe.model, recipe.learner, recipe.generators)
    check_reference(recipe, shape)
    check_network(recipe.network, os.environ)
    machine = machine or Machine.here()
    if machine.gpus and not os.environ.get("RAY_ADDRESS"):  # of a cluster, only the driver will know
        gpus.require(recipe, machine.gpus, "this machine")
    if not machine.gpus and not os.environ.get("RAY_ADDRESS"):
        check_head_size(shape)
    outstanding = (recipe.buffer.largest_depth + 1) * recipe.batch.groups_per_step
    greedy = recipe.algorithm.greedy_sample is not None
    episodes = recipe.batch.groups_per_step * (recipe.batch.group_size - greedy)
    splits: _Splits = (
        ("train", make_task_stream(recipe, CHECKED_TASKS).sources),
        ("evaluation", load_sources(recipe, "evaluation", CHECKED_TASKS)),
    )
    played = (*play_first_tasks(recipe, splits, note), *remarks_on(recipe))
    plan = Plan(
        processes=tuple(_with_gpus(recipe, machine, _processes(recipe, shape, outstanding))),
        sources=tuple(_describe(recipe, splits)),
        parameters=shape.parameters,
        episodes_per_step=episodes,
        episodes_in_all=episodes * recipe.steps,
        outstanding_groups=outstanding,
        running_episodes=recipe.generators.count * recipe.generators.max_running,
        machine=machine,
        choices=tuple(choices),
        inert=inert(recipe),
        remarks=(),
    )
    check_parsers(recipe.model.tool_parser, recipe.model.reasoning_parser)  # last: it may take seconds
    return msgspec.structs.replace(plan, remarks=(*played, *conflicts(recipe), *customs, *_remarks(recipe, shape, plan)))


def _try_customs(recipe: Recipe) -> list[str]:
    """Try the functions of the user's own on a made batch; returns remarks on them."""
    if not recipe.customs:
        return []
    from learners.custom.check import check_customs  # takes seconds: it needs torch

    return check_customs(recipe)


def _describe(recipe: Recipe, splits: _Splits) -> Iterator[Source]:
    """Describe the sources of tasks. Files were read whole; if the environment makes tasks, only the first were made."""
    for split, sources in splits:
        for source in sources:
            tasks = len(source.tasks)
            if isinstance(recipe.tasks, GeneratedTasks) and tasks == CHECKED_TASKS < getattr(recipe.tasks, split):
                yield Source(split, source.name, getattr(recipe.tasks, split), source.skipped, counted=False)
            else:
                yield Source(split, source.name, tasks, source.skipped)


def _processes(recipe: Recipe, shape: ModelShape, outstanding: int) -> tuple[Processes, ...]:
    generators, engine_bytes = recipe.generators, ELEMENT_BYTES[recipe.generators.dtype]
    held = outstanding * recipe.batch.group_size * recipe.model.max_context * TRAJECTORY_BYTES_A_TOKEN
    weights = shape.parameters * engine_bytes
    learner = recipe.learner
    layout = str(learner.layout)
    if learner.lora is not None:
        layout += f", {quantity(shape.adapter_parameters(learner.lora))} parameters in adapters"
    cache = generators.kv_cache_mb << 20
    return (
        Processes("driver", 1, DRIVER_BYTES, "the pumps, tracking, this view"),
        Processes("Ray", 1, RAY_BYTES + 2 * weights, "its own processes, object store, published weights"),
        Processes("generator", generators.count, ENGINE_BYTES + 2 * weights + cache, f"a vLLM engine ({generators.dtype})"),
        *_reward_model(recipe.reward, recipe.model),
        Processes("buffer", 1, BUFFER_BYTES + held, "the replay buffer"),
        Processes(
            "learner", learner.layout.ranks, LEARNER_BYTES + _learner_state_bytes(learner, shape), f"a Megatron rank ({layout})"
        ),
    )


def _with_gpus(recipe: Recipe, machine: Machine, processes: Iterable[Processes]) -> Iterator[Processes]:
    """Yield the processes with the GPUs that each is given."""
    each = {need.role: need.each for need in gpus.needs_of(recipe)} if machine.gpus else {}
    for process in processes:
        yield msgspec.structs.replace(process, gpus=each.get(process.role, 0))


def _reward_model(reward: RewardConfig, policy: ModelConfig) -> Iterator[Processes]:
    """The reward model, if there is one: its weights, and the activations of one layer in one forward pass."""
    if isinstance(reward, ModelReward):
        shape, element = read_reward_shape(reward, policy), ELEMENT_BYTES[reward.dtype]
        activations = reward.batch_tokens * (6 * shape.hidden_size + 3 * shape.intermediate_size) * element
        size = LEARNER_BYTES + shape.parameters * element + activations
        yield Processes("reward model", 1, size, f"a sequence classifier ({reward.dtype})")


def _learner_state_bytes(learner: LearnerConfig, shape: ModelShape) -> int:
    """Bytes of the weights, gradients, Adam's two moments, master weights and activations of one rank.

    Only trained weights have gradients, moments and master weights. Moments and master weights are divided over the
    ranks that hold the same weights: the data- and context-parallel ranks, and for experts the ranks of a pipeline
    stage that hold the same part of the same experts. Activations are those of one micro-batch: 17 elements per token,
    layer and hidden unit (Korthikanti et al. 2022, arXiv:2205.05198, equation 2 without attention matrices), and the
    logits, their exponentials and their gradient in float32.
    """
    layout = learner.layout
    element = ELEMENT_BYTES[learner.dtype]
    master = 0 if learner.dtype == "float32" else 4
    weights: tuple[tuple[int, int], ...] = (
        (shape.parameters - shape.expert_parameters, layout.tensor),
        (shape.expert_parameters, layout.expert * layout.expert_tensor),
    )
    trained = weights
    if learner.lora is not None:
        trained = ((shape.adapter_parameters(learner.lora), layout.tensor),)
        weights = (*weights, *trained)
    state = sum(parameters // (dividing * layout.pipeline) * element for parameters, dividing in weights)
    for parameters, dividing in trained:
        share = parameters // (dividing * layout.pipeline)
        holders = layout.stage_ranks // dividing
        state += share * 4 + share * (8 + master) // holders
    layers = shape.num_hidden_layers // layout.pipeline
    # Only the input of a layer that is computed again is kept; one layer at a time has all its activations.
    kept = layers + 16 if learner.recompute == "full" else 17 * layers
    hidden = kept * shape.hidden_size * element // layout.tensor
    logits = 3 * shape.vocab_size * 4 // layout.tensor
    return state + learner.micro_batch_tokens // layout.context * (hidden + logits)


def _remarks_on_gpus(recipe: Recipe, shape: ModelShape, machine: Machine) -> Iterator[str]:
    """Remarks on what the run makes of this machine's GPUs."""
    if machine.idle_gpus:
        yield (
            f"GPUs of this machine that the run does not use: {machine.idle_gpus}; install asyncrl[gpu] in an environment of its "
            "own, and see docs/gpu.md"
        )
    if not machine.gpus:
        return
    if recipe.learner.dtype == "float32":
        yield (
            "learner.dtype float32 on GPUs: layers are Megatron's plain ones, without TransformerEngine, and matrix products do "
            "not use tensor cores; set learner.dtype=bfloat16, which keeps fp32 master weights, unless you compare numbers"
        )
    if machine.gpu_memory:
        state = _learner_state_bytes(recipe.learner, shape)
        engine = int(recipe.generators.gpu_memory_share * machine.gpu_memory) if recipe.learner.gpu == "shared" else 0
        if state + engine > machine.gpu_memory:
            beside = f" and {memory(engine)} for the engine beside it" if engine else ""
            yield (
                f"a learner rank needs about {memory(state)} of GPU memory{beside}, and a GPU here has "
                f"{memory(machine.gpu_memory)}: lower learner.micro_batch_tokens or generators.gpu_memory_share, set "
                "learner.recompute=full, train adapters (learner.lora), or use more ranks"
            )


def _remarks(recipe: Recipe, shape: ModelShape, plan: Plan) -> tuple[str, ...]:
    remarks = list(_remarks_on_gpus(recipe, shape, plan.machine))
    if plan.total_bytes > plan.machine.memory:
        remarks.append(_beyond_the_machine(recipe, plan))
    elif plan.total_bytes > plan.machine.free:
        remarks.append(
            f"the run needs about {memory(plan.total_bytes)} of memory and {memory(plan.machine.free)} are free here: "
            "lower generators.count, generators.kv_cache_mb or learner.micro_batch_tokens, or free some memory"
        )
    if plan.outstanding_groups < recipe.generators.count:
        remarks.append(
            f"at most {plan.outstanding_groups} groups are outstanding for generators.count {recipe.generators.count}: "
            "some engines never have work; raise buffer.pipeline_depth or batch.groups_per_step"
        )
    if recipe.learner.context_parallel > 1:
        remarks.append(
            f"with learner.context_parallel {recipe.learner.context_parallel} the prompt that a group shares is computed once "
            "for each of its rows; with 1 it is computed once in a micro-batch"
        )
    cached_tokens = (recipe.generators.kv_cache_mb << 20) // shape.cache_bytes(ELEMENT_BYTES[recipe.generators.dtype])
    if cached_tokens < recipe.generators.max_running * recipe.model.max_context:
        remarks.append(
            f"the key-value cache of an engine holds {quantity(cached_tokens)} tokens, about "
            f"{cached_tokens // recipe.model.max_context} episodes of model.max_context, and generators.max_running is "
            f"{recipe.generators.max_running}: if episodes are that long, vLLM preempts some; raise generators.kv_cache_mb"
        )
    return tuple(remarks)


def _beyond_the_machine(recipe: Recipe, plan: Plan) -> str:
    """The remark that the machine is too small: what the run needs, what there is, and how many generators fit."""
    (each,) = (process.each_bytes for process in plan.processes if process.role == "generator")
    there, free = plan.machine.memory, plan.machine.free
    fitting = (there - plan.total_bytes + recipe.generators.count * each) // each
    room = f"{fitting} generators would fit" if fitting > 0 else "not even the rest fits without generators"
    return (
        f"the run needs about {memory(plan.total_bytes)}, and this machine has {memory(there)} in all, "
        f"of which {memory(free)} are free: it cannot hold the run by itself ({room}); lower generators.count, or "
        "set RAY_ADDRESS to join a cluster"
    )
