"""The processes of a run, and the memory that each is expected to take.

It is an estimate, good enough to tell a run that fits from one that does not.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec

from asyncrl.core.measures.units import memory, quantity
from asyncrl.core.recipe.generators import MAIN_POOL, GeneratorsConfig
from asyncrl.core.recipe.learner import LearnerConfig
from asyncrl.core.recipe.reward import ModelRewardConfig, RewardConfig
from asyncrl.core.recipe.schema import ModelConfig, Recipe
from asyncrl.run.models.further_models import read_reward_shape, weight_bytes
from asyncrl.run.models.model_shape import ELEMENT_BYTES, ModelShape
from asyncrl.run.nodes.process_kinds import LEARNER, REWARD_MODEL, TEACHER, teacher_engines

if TYPE_CHECKING:  # it needs psutil, and what measures a learner on a GPU does without
    from asyncrl.run.nodes.machine import Machine

DRIVER_BYTES = 500 << 20
"""The driver's process, with the clients of Ray and MLflow."""
RAY_BYTES = 1 << 30
"""Ray's own processes and its object store."""
BUFFER_BYTES = 300 << 20
"""The buffer's process without the trajectories it holds."""
ENGINE_PROCESS_BYTES = 750 << 20
"""A process of a vLLM engine (front end, core, each worker) without model and cache."""
LEARNER_BYTES = 600 << 20
"""A process with torch, Megatron and Ray, without the model."""
TRAJECTORY_BYTES_A_TOKEN = 9
GPU_WORK_BYTES = 4 << 30
"""What a learner rank takes of a GPU beside its state and activations, estimated: CUDA's context and libraries, tiles of logits,
exponentials of some that are kept between the passes, and memory that the allocator holds in pieces that are too small."""


class Processes(msgspec.Struct, frozen=True):
    """``count`` equal processes of the run, the memory that each is expected to take, and the GPUs that it is given.

    Attributes:
        role: what they are, for people.
        part: the part of the run that is placed on nodes; empty if they are none. See :mod:`asyncrl.run.nodes.process_kinds`.
    """

    role: str
    count: int
    each_bytes: int
    what: str
    gpus: float = 0
    part: str = ""


def outstanding_groups(recipe: Recipe) -> int:
    """How many groups may be generated or waiting at any time."""
    return (recipe.largest_depth + 1) * recipe.batch.groups_per_step


def processes_of(recipe: Recipe, shape: ModelShape) -> tuple[Processes, ...]:
    """Return the processes of a run, in the order in which experience passes through them, without their GPUs."""
    groups = min(outstanding_groups(recipe), recipe.steps * recipe.batch.groups_per_step)
    longest = recipe.batch.group_size * recipe.model.max_context * TRAJECTORY_BYTES_A_TOKEN
    held = min(groups * longest, recipe.buffer.capacity_mb * 1_000_000)
    weights = shape.parameters * max(ELEMENT_BYTES[pool.dtype] for pool in recipe.generators.by_pool.values())
    learner = recipe.learner
    layout = str(learner.layout)
    if learner.lora is not None:
        layout += f", {quantity(shape.adapter_parameters(learner.lora))} parameters in adapters"
    return (
        Processes("driver", 1, DRIVER_BYTES, "batches, evaluations, tracking, this view"),
        Processes("Ray", 1, RAY_BYTES + 2 * weights, "its own processes, object store, published weights"),
        *(_pool(name, pool, shape) for name, pool in recipe.generators.by_pool.items()),
        *_reward_model(recipe.reward, recipe.model),
        *_teacher(recipe),
        Processes("buffer", 1, BUFFER_BYTES + held, "the replay buffer"),
        Processes(
            LEARNER,
            learner.layout.ranks,
            learner_bytes(learner, shape),
            f"a Megatron rank ({layout})",
            part=LEARNER,
        ),
    )


def engine_bytes(pool: GeneratorsConfig) -> int:
    """Bytes of the processes of one engine on its first node without model and cache: front end, the core of each rank, and
    workers.

    A rank's only worker is in the process of its core; there, another core stands for what starts or coordinates them.
    """
    cores = pool.data_parallel if pool.engine_workers > pool.data_parallel else 1
    return (1 + cores + pool.engine_workers // pool.engine_nodes) * ENGINE_PROCESS_BYTES


def _pool(name: str, pool: GeneratorsConfig, shape: ModelShape) -> Processes:
    in_each_rank = shape.parameters - shape.expert_parameters
    weights = shape.expert_parameters + pool.data_parallel * in_each_rank
    nodes = pool.engine_nodes
    size = engine_bytes(pool) + (2 * weights * ELEMENT_BYTES[pool.dtype] + (pool.kv_cache_mb << 20)) // nodes
    role = "generator" if name == MAIN_POOL else f"generator of {name}"
    plays = {"train": ", for training alone", "evaluation": ", for evaluations alone", "both": ""}[pool.role]
    what = "a vLLM engine" if nodes == 1 else f"a node of a vLLM engine on {nodes}"
    return Processes(role, pool.count * nodes, size, f"{what} ({pool.dtype}{plays})", part=name)


def sizes_of(recipe: Recipe, shape: ModelShape) -> dict[str, int]:
    """Return the memory that a process of each part is expected to take, in bytes."""
    return {process.part: process.each_bytes for process in processes_of(recipe, shape) if process.part}


def _reward_model(reward: RewardConfig, policy: ModelConfig) -> Iterator[Processes]:
    """The reward model, if there is one: its weights, and the activations of one layer in one forward pass."""
    if isinstance(reward, ModelRewardConfig):
        shape, element = read_reward_shape(reward, policy), ELEMENT_BYTES[reward.dtype]
        activations = reward.batch_tokens * (6 * shape.hidden_size + 3 * shape.intermediate_size) * element
        size = LEARNER_BYTES + shape.parameters * element + activations
        yield Processes(REWARD_MODEL, 1, size, f"a sequence classifier ({reward.dtype})", part=REWARD_MODEL)


def _teacher(recipe: Recipe) -> Iterator[Processes]:
    """The engines of a teacher, if there are any."""
    teacher, pool = recipe.algorithm.teacher, teacher_engines(recipe)
    if teacher is not None and pool is not None:
        size = engine_bytes(pool) + weight_bytes(teacher, pool.dtype) + (pool.kv_cache_mb << 20)
        yield Processes(TEACHER, pool.count, size, f"a vLLM engine ({pool.dtype}) of {teacher.name}", part=TEACHER)


def learner_bytes(learner: LearnerConfig, shape: ModelShape) -> int:
    """Bytes of the process of one learner rank."""
    return LEARNER_BYTES + learner_state_bytes(learner, shape)


def learner_state_bytes(learner: LearnerConfig, shape: ModelShape) -> int:
    """Bytes of the weights, gradients, Adam's two moments, master weights and activations of one rank.

    Only trained weights have gradients, moments and master weights. Moments and master weights are divided over the
    ranks that hold the same weights: the data- and context-parallel ranks, and for experts the ranks of a pipeline
    stage that hold the same part of the same experts. Activations are those of one micro-batch. Logits are not among them:
    a few tiles of them exist at a time.
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
    full = learner.recompute == "full"
    kept = layers * shape.hidden_size + activations(shape) if full else layers * activations(shape)
    return state + learner.micro_batch_tokens // layout.context * kept * element // layout.tensor


def activations(shape: ModelShape) -> int:
    """Numbers that a layer keeps of each token for its backward pass: what norms, rotations, products and the gated activation
    were given (as in Korthikanti et al. 2022, arXiv:2205.05198, section 4.1, but attention keeps no matrices)."""
    queries, keys = shape.num_attention_heads * shape.head_size, shape.key_value_heads * shape.head_size
    attention = (queries + 2 * keys) + 2 * (queries + keys) + queries
    return 4 * shape.hidden_size + attention + 3 * shape.intermediate_size


def gpu_bytes(learner: LearnerConfig, shape: ModelShape) -> int:
    """Bytes of GPU memory that one learner rank takes."""
    return learner_state_bytes(learner, shape) + GPU_WORK_BYTES


def beside_learner(recipe: Recipe, shape: ModelShape, gpu_memory: int) -> int:
    """Bytes of a GPU of ``gpu_memory`` bytes that an engine takes which shares it with the learner; 0 if none does.

    That is the engine's share and, while it loads new weights layer by layer, twice its largest tensor, the embedding.
    """
    if recipe.learner.gpu != "shared":
        return 0
    pool = recipe.generators
    return int(pool.gpu_memory_share * gpu_memory) + 2 * shape.vocab_size * shape.hidden_size * ELEMENT_BYTES[pool.dtype]


def preemptions(recipe: Recipe, shape: ModelShape, machine: "Machine") -> Iterator[str]:
    """Remark that the key-value cache of an engine does not hold as many episodes as may run at once, or not even one.

    On GPUs the cache is what the engine's share of their memory leaves beside the weights; where their memory is not known,
    nothing is remarked.
    """
    pool, element = recipe.generators, ELEMENT_BYTES[recipe.generators.dtype]
    room, key = float(pool.kv_cache_mb << 20), "kv_cache_mb"
    if machine.gpus:
        weights = (shape.parameters - shape.expert_parameters) * pool.data_parallel + shape.expert_parameters
        room = pool.engine_workers * pool.gpu_memory_share * machine.gpu_memory - weights * element
        key = "gpu_memory_share"
    cached, longest = int(room) // shape.cache_bytes(element), recipe.model.max_context
    if machine.gpus and machine.gpu_memory and cached < longest and "quantization" not in pool.engine:
        share = f"{pool.gpu_memory_share:g} of {pool.engine_workers} x {memory(machine.gpu_memory)}"
        yield (
            f"generators.gpu_memory_share: {share} does not hold the model's weights in {pool.dtype} and an episode of {longest} "
            "tokens: vLLM will not start; raise it, or generators.tensor_parallel"
        )
    elif 0 < cached < pool.max_running * longest:
        yield (
            f"the key-value cache of an engine holds {quantity(cached)} tokens, about {cached // longest} episodes of "
            f"model.max_context, and generators.max_running is {pool.max_running}: if episodes are that long, vLLM preempts "
            f"some; raise generators.{key}"
        )
