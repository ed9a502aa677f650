"""The parts of a run that are placed on nodes, and what each process of them takes of its node."""

from collections.abc import Iterator, Mapping

from asyncrl.core.recipe.generators import GeneratorsConfig
from asyncrl.core.recipe.learner import LearnerConfig
from asyncrl.core.recipe.reward import ModelRewardConfig
from asyncrl.core.recipe.rules.placement import pool_place
from asyncrl.core.recipe.schema import Recipe
from asyncrl.run.nodes.placement import Part

LEARNER, REWARD_MODEL, TEACHER = "learner", "reward model", "teacher"
"""The parts that are no pool of generators."""
HALF = 0.5
"""What each process takes of a GPU where the learner shares its own."""


def parts_of(recipe: Recipe, *, on_gpus: bool, sizes: Mapping[str, int] | None = None) -> list[Part]:
    """Return the parts of a run of ``recipe``: learner, pools of generators, and reward model and teacher if there are any.

    Args:
        on_gpus: whether the run uses GPUs. Then each process takes its GPUs, and no CPUs or memory that the recipe does not name.
        sizes: the memory that a process of each part is expected to take, in bytes, in a cluster without GPUs. None for a
            machine that the run has to itself: there processes share what there is.
    """
    parts = [learner_part(recipe.learner, on_gpus=on_gpus, sizes=sizes), *pools_of(recipe, on_gpus=on_gpus, sizes=sizes)]
    if isinstance(recipe.reward, ModelRewardConfig):
        each = _each(_one_gpu(recipe.learner), 1, on_gpus, sizes, REWARD_MODEL)
        parts.append(Part(REWARD_MODEL, 1, each, key="reward.path"))
    if (engines := teacher_engines(recipe)) is not None:
        shared = recipe.learner.gpu == "shared"
        parts.append(_pool(TEACHER, engines, shared, on_gpus, sizes, "algorithm.teacher.engines"))
    return parts


def teacher_engines(recipe: Recipe) -> GeneratorsConfig | None:
    """Return the pool of the teacher's engines; None without a teacher, or if it is on a server."""
    teacher = recipe.algorithm.teacher
    return None if teacher is None or teacher.path is None else teacher.pool(recipe.generators)


def learner_part(learner: LearnerConfig, *, on_gpus: bool, sizes: Mapping[str, int] | None = None) -> Part:
    """Return the part that the learner's ranks are; see :func:`parts_of`."""
    each = {**_each(_one_gpu(learner), 1, on_gpus, sizes, LEARNER), **learner.placement.resources}
    ranks, key = learner.layout.ranks, "learner.data_parallel"
    together = learner.tensor_parallel if learner.tensor_parallel_nodes == "one" else 1
    return Part(LEARNER, ranks, each, learner.placement, together=together, key=key, gang=True)


def pools_of(recipe: Recipe, *, on_gpus: bool, sizes: Mapping[str, int] | None = None) -> list[Part]:
    """Return the parts that play episodes; see :func:`parts_of`."""
    shared = recipe.learner.gpu == "shared"
    pools = recipe.generators.by_pool.items()
    return [_pool(name, pool, shared, on_gpus, sizes, f"{pool_place(name)}.count") for name, pool in pools]


def _pool(name: str, pool: GeneratorsConfig, shared: bool, on_gpus: bool, sizes: Mapping[str, int] | None, key: str) -> Part:
    workers, nodes = pool.engine_workers // pool.engine_nodes, pool.engine_nodes
    each = _each(HALF if shared else float(workers), workers, on_gpus, sizes, name)
    return Part(name, pool.count * nodes, {**each, **pool.placement.resources}, pool.placement, key=key, apart=nodes)


def _one_gpu(learner: LearnerConfig) -> float:
    return HALF if learner.gpu == "shared" else 1.0


def _each(gpus: float, cpus: int, on_gpus: bool, sizes: Mapping[str, int] | None, part: str) -> dict[str, float]:
    if on_gpus:
        return {"GPU": gpus}
    return {} if sizes is None else {"CPU": cpus, "memory": sizes[part]}


def remedies(recipe: Recipe, *, joined: bool, on_gpus: bool) -> Iterator[str]:
    """Yield what would help where there is no room for a part, beside what follows from the part itself.

    Args:
        joined: whether the run joins a cluster; otherwise it has this machine to itself.
        on_gpus: whether the run uses GPUs.
    """
    if on_gpus and recipe.learner.gpu == "own" and recipe.learner.layout.ranks == recipe.generators.engine_workers == 1:
        yield "set learner.gpu=shared generators.gpu_memory_share=0.4, with which two processes use one GPU"
    if not joined:
        yield "set RAY_ADDRESS to join a cluster with more"
        return
    yield "add nodes to the cluster, or wait until others have left it"
    verb = "raise" if recipe.deadlines.room else "set"
    yield f"{verb} deadlines.room to how many seconds a cluster that grows by itself may take"
