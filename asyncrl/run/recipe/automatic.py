"""Chooses values for the keys of a recipe that are ``auto``.

``buffer.pipeline_depth`` is not among them: if it is ``auto``, it moves while training (:mod:`asyncrl.core.measures.pacing`).
The choices follow from the machine, the model and the rest of the recipe. A resumed run keeps the values in the recipe
of its run folder.

Which data type a model is computed in on a CPU, where the recipe leaves it to the machine: the one measured to be faster.

That a processor has instructions for bfloat16 does not say that it is faster with them.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Set
from importlib.metadata import version
from math import ceil

import msgspec

from asyncrl.core.errors import ComponentFailed, RecipeError
from asyncrl.core.measures.units import memory
from asyncrl.core.process.asked_python import ask_python
from asyncrl.core.process.kept_measurement import kept_measurement
from asyncrl.core.recipe.generators import MOST_RUNNING
from asyncrl.core.recipe.learner import LearnerConfig
from asyncrl.core.recipe.reward import ModelRewardConfig
from asyncrl.core.recipe.schema import Recipe
from asyncrl.learners.type_speed import Product, TypeSpeed
from asyncrl.run.models.model_shape import ELEMENT_BYTES, ModelShape, read_shape
from asyncrl.run.models.template_facts import tool_parser_of
from asyncrl.run.nodes.cluster_nodes import Nodes
from asyncrl.run.nodes.machine import Machine
from asyncrl.run.nodes.placement import Node, NoRoom, place
from asyncrl.run.nodes.process_kinds import LEARNER, learner_part
from asyncrl.run.nodes.process_memory import beside_learner, gpu_bytes, learner_bytes

MOST_RUNNING_ON_LARGE_GPUS = 1024
"""vLLM's own default on GPUs of at least :data:`LARGE_GPU_BYTES` that are newer than an A100."""
LARGE_GPU_BYTES = 70 << 30
LEAST_CACHE_MB = 64
CACHE_SHARE = 0.2
"""The largest share of free memory for the key-value caches of all engines together."""
MICRO_BATCH_TOKENS = 8192
GPU_MICRO_BATCH_TOKENS = 16_384
LEAST_MICRO_BATCH_TOKENS = 1024
"""The fewest that are chosen where a GPU has little memory: smaller products do not keep it busy."""
SHARED_MEMORY = 0.4
"""The share of a GPU's memory for an engine that shares the GPU with the learner."""
FEW_CORES = 2
"""With at most this many cores, a run on a CPU gets one engine."""
CORES_A_RANK = 4
"""On CPU, one learner rank for this many cores of a node; the others are for engines, tools and the run's own processes."""
COSTLY_EPISODE = {"bfloat16": 16e9, "float32": 12e9}
"""Floating-point operations of training an episode beyond which a learner of one rank is slower than its engine, by the learner's
data type.

On two cores, with models of 1 M and of 6 M parameters, two ranks in bfloat16 were 0.85 times as fast as one at 2.5e9 and at 10e9,
0.9 to 1.0 at 15e9, and 1.17 at 17e9; in float32, without AVX-512, 0.87 at 2.5e9, 1.0 at 10e9 and 1.26 at 15e9.
"""
CORES_A_BUSY_RANK = 2
"""As :data:`CORES_A_RANK`, where training an episode costs so much; the first :data:`FEW_CORES` cores have a rank each."""
LEARNER_SHARE = 0.5
"""The largest share of a node's free memory for more learner ranks than the model needs."""
logger = logging.getLogger(__name__)
MODULE = "asyncrl.learners.type_speed"
MEASURED_S = 90.0
"""How long the measurement may take, most of which is loading torch."""
PAYS = 0.8
"""The share of float32's time from which on bfloat16 pays: the conversions around the products cost about as much as the rest."""


class Choice(msgspec.Struct, frozen=True):
    """A value that was chosen for a key of a recipe, and why."""

    key: str
    value: int | float | str
    reason: str


def choose(recipe: Recipe, keys: Set[str], machine: Machine) -> tuple[Recipe, tuple[Choice, ...]]:
    """Choose values for the keys of a recipe that are ``auto``, in an order in which each may depend on those before it.

    Args:
        recipe: the recipe, with the schema's default for each key that is ``auto``.
        keys: dotted paths of the keys to choose.
        machine: the machine that the run will use.

    Returns:
        the recipe with the values chosen, and the choices; a value that the machine makes no use of is no choice.
    """
    try:
        shape = read_shape(recipe.model.path)
    except RecipeError:
        shape = None  # the plan will refuse the model
    choices = []
    for key, rule in _RULES.items():
        if key in keys:
            section, name = key.split(".")
            value, reason = rule(recipe, machine, shape)
            changed = msgspec.structs.replace(getattr(recipe, section), **{name: value})
            recipe = msgspec.structs.replace(recipe, **{section: changed})
            choices += [Choice(key, value, reason)] if reason else []
    return recipe, tuple(choices)


def _dtype(recipe: Recipe, machine: Machine, shape: ModelShape | None) -> tuple[str, str]:
    if machine.gpus:
        return "bfloat16", "GPUs compute in it"
    return _faster_dtype(machine, shape)


def _learner_dtype(recipe: Recipe, machine: Machine, shape: ModelShape | None) -> tuple[str, str]:
    if machine.gpus:
        return "bfloat16", "GPUs compute in it, and TransformerEngine's layers need it"
    if recipe.generators.dtype == "float32":
        return "float32", "the engines compute in it"
    return _faster_dtype(machine, shape)


def _faster_dtype(machine: Machine, shape: ModelShape | None) -> tuple[str, str]:
    """The data type in which engine and learner together are faster on a CPU."""
    if not machine.bfloat16:
        return "float32", "the processor has no instructions for bfloat16"
    share = None if shape is None else bfloat16_share(shape)
    if share is None:
        return "bfloat16", "the processor has instructions for it"
    dtype = "bfloat16" if share <= PAYS else "float32"
    return dtype, f"measured on this processor: in bfloat16 the model's products take {share:.2f} times as long as in float32"


def _gpu(recipe: Recipe, machine: Machine, shape: ModelShape | None) -> tuple[str, str]:
    if machine.gpus == 1 and recipe.learner.layout.ranks == recipe.generators.engine_workers == 1:
        return "shared", "there is one GPU for the learner and an engine"
    return "own", "each process has its GPUs to itself" if machine.gpus else ""


def _gpu_memory_share(recipe: Recipe, machine: Machine, shape: ModelShape | None) -> tuple[float, str]:
    if not machine.gpus:
        return recipe.generators.gpu_memory_share, ""
    if recipe.learner.gpu == "shared":
        return SHARED_MEMORY, "the learner, which shares the GPU, needs more than an engine"
    return recipe.generators.gpu_memory_share, "an engine has its GPU to itself"


def _count(recipe: Recipe, machine: Machine, shape: ModelShape | None) -> tuple[int, str]:
    if machine.gpus:
        others = recipe.learner.layout.ranks + isinstance(recipe.reward, ModelRewardConfig)
        if recipe.learner.gpu == "shared":
            return max(1, 2 * machine.gpus - others), f"GPUs: {machine.gpus}, two processes each, of which {others} are others"
        each = recipe.generators.engine_workers
        return max(1, (machine.gpus - others) // each), f"GPUs: {machine.gpus}, of which learner and reward model take {others}"
    if machine.cores <= FEW_CORES:
        return 1, f"{machine.cores} cores: a second engine would compete with the learner for them"
    return 2, "two engines play episodes side by side, and one goes on if the other fails"


def _role(recipe: Recipe, machine: Machine, shape: ModelShape | None) -> tuple[str, str]:
    evaluating = [name for name, pool in recipe.generators.pools.items() if pool.role == "evaluation"]
    if evaluating:
        return "train", f"pool {' and '.join(evaluating)} plays the evaluations"
    return "both", "no pool plays evaluations alone"


def _max_running(recipe: Recipe, machine: Machine, shape: ModelShape | None) -> tuple[int, str]:
    size, engines = recipe.batch.group_size, sum(pool.count for pool in recipe.generators.training.values()) or 1
    groups = ceil((recipe.largest_depth + 1) * recipe.batch.groups_per_step / engines)
    ranks, default = recipe.generators.data_parallel, _most_running(machine)
    most = max(1, ranks * default // size) * size
    if groups * size <= most:
        return groups * size, "an engine's share of the episodes that may be outstanding"
    return (
        most,
        f"{most // size} groups: vLLM's own default here is {default} sequences for each {'rank' if ranks > 1 else 'engine'}",
    )


def _most_running(machine: Machine) -> int:
    large = machine.gpus and machine.gpu_memory >= LARGE_GPU_BYTES and "A100" not in machine.gpu_name
    return MOST_RUNNING_ON_LARGE_GPUS if large else MOST_RUNNING


def _kv_cache_mb(recipe: Recipe, machine: Machine, shape: ModelShape | None) -> tuple[int, str]:
    generators = recipe.generators
    if shape is None or machine.gpus:
        return generators.kv_cache_mb, "the model is not known" if shape is None else ""
    needed = generators.max_running * recipe.model.max_context * shape.cache_bytes(ELEMENT_BYTES[generators.dtype])
    most = int(machine.free * CACHE_SHARE / generators.engines)
    if needed > most:
        return max(
            LEAST_CACHE_MB, most >> 20
        ), f"a fifth of the free memory for all engines; {memory(needed)} would hold every running episode"
    return max(LEAST_CACHE_MB, ceil(needed / 2**20)), "holds every running episode at its longest"


def _micro_batch_tokens(recipe: Recipe, machine: Machine, shape: ModelShape | None) -> tuple[int, str]:
    longest = recipe.model.max_context
    by_memory = shape is not None and machine.gpus and machine.gpu_memory
    wanted = GPU_MICRO_BATCH_TOKENS if by_memory else MICRO_BATCH_TOKENS
    if longest >= wanted:
        return longest, "holds the longest episode"
    if shape is None or not machine.gpu_memory or not by_memory:
        return wanted, "enough to keep the processor busy"
    room = machine.gpu_memory - beside_learner(recipe, shape, machine.gpu_memory)
    tokens = wanted
    while tokens > LEAST_MICRO_BATCH_TOKENS and not _fits(recipe.learner, shape, tokens, room):
        tokens //= 2
    if tokens == wanted:
        return tokens, "enough to keep the GPU busy"
    return max(tokens, longest), f"the learner has {memory(room)} of the GPU, and its activations have to fit beside its state"


def _fits(learner: LearnerConfig, shape: ModelShape, tokens: int, room: int) -> bool:
    """Whether a learner rank with micro-batches of so many tokens needs at most ``room`` bytes of a GPU."""
    return gpu_bytes(msgspec.structs.replace(learner, micro_batch_tokens=tokens), shape) <= room


def _data_parallel(recipe: Recipe, machine: Machine, shape: ModelShape | None) -> tuple[int, str]:
    layout = msgspec.structs.replace(recipe.learner, data_parallel=1).layout
    least = layout.least_data
    if machine.gpus:
        return least, "further GPUs are for engines; raise it where the learner is the bottleneck"
    costly = _costly_episode(recipe, shape)
    nodes = _nodes(machine)
    room = sum(_room(node, costly=bool(costly)) for node in nodes.alive)
    most = min(room // layout.ranks, recipe.batch.groups_per_step, recipe.fewest_episodes) // least * least
    tokens = max(recipe.learner.micro_batch_tokens, recipe.model.max_context)  # at least: it may be chosen after this
    for ranks in range(most, least, -least):
        learner = msgspec.structs.replace(recipe.learner, data_parallel=ranks, micro_batch_tokens=tokens)
        if _have_room(learner, nodes, shape, costly=bool(costly)):
            cores = "the cores of its nodes" if machine.cluster else f"{machine.cores} cores"
            each = "group of a step" if recipe.batch.groups_per_step <= recipe.fewest_episodes else "episode of an optimizer step"
            return ranks, f"{costly}{cores} have room for {room} ranks, and there is at most one for each {each}"
    return least, "the fewest that can divide the experts" if least > 1 else "engines and tools need the other cores"


def _costly_episode(recipe: Recipe, shape: ModelShape | None) -> str:
    """Say that an episode costs so much to train that a learner of one rank is slower than its engine; empty if it does not."""
    cost = 0 if shape is None else _training_cost(shape, recipe.model.max_context)
    if cost < COSTLY_EPISODE[recipe.learner.dtype]:
        return ""
    return f"one rank would keep engines waiting, with up to {cost / 1e9:,.1f} GFLOP to train an episode: "


def _training_cost(shape: ModelShape, tokens: int) -> int:
    """Floating-point operations of training an episode of ``tokens``: two for each multiplication in the forward pass, and twice
    that in the backward pass (Kaplan et al. 2020, arXiv:2001.08361, section 2.1). A token sees half of the episode on average,
    and of a mixture its own experts."""
    attention = shape.num_hidden_layers * shape.num_attention_heads * shape.head_size * tokens
    return 6 * tokens * (shape.active_parameters + attention)


def _nodes(machine: Machine) -> Nodes:
    """The nodes on which a run's processes may be; a machine alone is one."""
    if machine.cluster is not None:
        return machine.cluster
    room = {"CPU": float(machine.cores), "memory": float(machine.free)}
    return Nodes((Node(id="", host="", has=room, free=room),), "")


def _room(node: Node, *, costly: bool) -> int:
    """How many learner ranks a node's cores have room for beside all else that runs there; with more cores, never fewer."""
    cores = int(node.has.get("CPU", 0))
    return max(min(cores, FEW_CORES), cores // CORES_A_BUSY_RANK) if costly else cores // CORES_A_RANK


def _have_room(learner: LearnerConfig, nodes: Nodes, shape: ModelShape | None, *, costly: bool) -> bool:
    """Whether the nodes on which the learner's ranks would be placed have the cores and the memory for them."""
    size = 0 if shape is None else learner_bytes(learner, shape)
    part = learner_part(learner, on_gpus=False, sizes={LEARNER: size})
    try:
        ranks_on = Counter(place((part,), nodes.alive, nodes.driver)[LEARNER])
    except NoRoom:
        return False
    return all(
        ranks_on[node.id] <= _room(node, costly=costly) and ranks_on[node.id] * size <= LEARNER_SHARE * node.free.get("memory", 0)
        for node in nodes.alive
        if ranks_on[node.id]
    )


def _tool_parser(recipe: Recipe, machine: Machine, shape: ModelShape | None) -> tuple[str, str]:
    return tool_parser_of(recipe.model.path, recipe.model.chat_template)


_Rule = Callable[[Recipe, Machine, ModelShape | None], tuple[int | float | str, str]]
_RULES: Mapping[str, _Rule] = {
    "model.tool_parser": _tool_parser,
    "learner.dtype": _learner_dtype,
    "generators.dtype": _dtype,
    "learner.data_parallel": _data_parallel,
    "learner.gpu": _gpu,
    "generators.gpu_memory_share": _gpu_memory_share,
    "learner.micro_batch_tokens": _micro_batch_tokens,
    "generators.count": _count,
    "generators.role": _role,
    "generators.max_running": _max_running,
    "generators.kv_cache_mb": _kv_cache_mb,
}
"""How each key is chosen, in the order in which they depend on one another."""


def bfloat16_share(shape: ModelShape) -> float | None:
    """Return the time that the model's products take in bfloat16 as a share of that in float32; None if it cannot be measured."""
    products = tuple(products_of(shape))
    try:
        found = kept_measurement("data-type", (version("torch"), products), TypeSpeed, lambda: _measured(products))
    except ComponentFailed as failure:
        logger.warning("%s", failure)
        return None
    return found.bfloat16 / found.float32


def products_of(shape: ModelShape) -> Iterator[Product]:
    """Yield the products of a model's layers, and of its output layer, which a learner computes in float32 in any case."""
    hidden, queries = shape.hidden_size, shape.num_attention_heads * shape.head_size
    mixture = shape.mixture
    layers, mixtures = shape.num_hidden_layers, sum(mixture.layers)
    yield Product(hidden, queries + 2 * shape.key_value_heads * shape.head_size, layers)
    yield Product(queries, hidden, layers)
    if layers > mixtures:
        yield Product(hidden, 2 * shape.intermediate_size, layers - mixtures)
        yield Product(shape.intermediate_size, hidden, layers - mixtures)
    if mixtures:
        share = min(1.0, mixture.per_token / mixture.experts)
        yield Product(hidden, 2 * mixture.channels, mixtures * mixture.experts, share)
        yield Product(mixture.channels, hidden, mixtures * mixture.experts, share)
    if mixture.shared:
        yield Product(hidden, 2 * mixture.shared, mixtures)
        yield Product(mixture.shared, hidden, mixtures)
    yield Product(hidden, shape.vocab_size, trained=False)


def _measured(products: tuple[Product, ...]) -> TypeSpeed:
    """Measure in a process of its own.

    Raises:
        ComponentFailed: it fails, or takes longer than :data:`MEASURED_S`.
    """
    arguments = ("-m", MODULE, msgspec.json.encode(products).decode())
    what = "measuring which data type is faster"
    try:
        return ask_python(TypeSpeed, arguments, MEASURED_S, OMP_NUM_THREADS="1", CUDA_VISIBLE_DEVICES="")
    except TimeoutError as late:
        raise ComponentFailed(f"{what} took longer than {MEASURED_S:g} s; name generators.dtype and learner.dtype") from late
    except ComponentFailed as error:
        raise ComponentFailed(f"{what} failed: {error}; name generators.dtype and learner.dtype") from error
