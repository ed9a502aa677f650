"""Rules on pools of generators, and on where the parts of a run go."""

from collections.abc import Iterator

from asyncrl.core.errors import RecipeError
from asyncrl.core.recipe.generators import MAIN_POOL
from asyncrl.core.recipe.network import NoTlsConfig
from asyncrl.core.recipe.placement import PlacementConfig
from asyncrl.core.recipe.schema import Recipe

_TAKEN = ("buffer", "driver", "generator", MAIN_POOL, "learner", "reward_model", "teacher")
"""Names that other parts of a run have; a pool's name is the beginning of its workers' names."""


LARGEST_PART = 4096
"""The most processes that a part of a run has: each is placed and shown by a dry run, which more would keep busy for minutes."""


def pool_place(pool: str) -> str:
    """Return the recipe key of a pool's section, e.g. ``generators.pools.evaluation``."""
    return MAIN_POOL if pool == MAIN_POOL else f"{MAIN_POOL}.pools.{pool}"


def _pools_have_names_of_their_own(recipe: Recipe) -> Iterator[RecipeError]:
    for name in recipe.generators.pools:
        if name in _TAKEN:
            yield RecipeError(pool_place(name), "another part of a run has this name", "give the pool another one")


def _somebody_plays_each_kind_of_episode(recipe: Recipe) -> Iterator[RecipeError]:
    roles = {name: pool.role for name, pool in recipe.generators.by_pool.items()}
    for missing, other in (("train", "evaluation"), ("evaluation", "train")):
        if all(role == other for role in roles.values()):
            what = "training episodes" if missing == "train" else "evaluations"
            enough = f"{missing} or both" if len(roles) > 1 else "both"  # alone, it must play the other kind as well
            yield RecipeError(
                "generators.role",
                f"no pool plays {what}: {', '.join(f'{name} has role {role}' for name, role in roles.items())}",
                f"set it to {enough}, or add a pool of role {missing} to generators.pools",
            )


def _each_part_can_be_planned(recipe: Recipe) -> Iterator[RecipeError]:
    learner, teacher = recipe.learner, recipe.algorithm.teacher
    sizes = {
        f"learner.{name}_parallel": getattr(learner, f"{name}_parallel") for name in ("tensor", "pipeline", "data", "context")
    }
    counted = [
        (max(sizes, key=lambda key: sizes[key]), learner.layout.ranks),
        *((f"{pool_place(name)}.count", pool.count * pool.engine_workers) for name, pool in recipe.generators.by_pool.items()),
        ("buffer.shards", recipe.buffer.shards),
        *([] if teacher is None else [("algorithm.teacher.engines", teacher.engines * teacher.tensor_parallel)]),
    ]
    for place, count in counted:
        if count > LARGEST_PART:
            problem = f"it makes {count:,} processes, and a part of a run has at most {LARGEST_PART:,}"
            yield RecipeError(place, problem, f"set it so low that there are no more than {LARGEST_PART:,}")


def _gpus_follow_from_the_parts(recipe: Recipe) -> Iterator[RecipeError]:
    for place, placement in _placements(recipe):
        if "GPU" in placement.resources:
            key = "learner.gpu" if place.startswith("learner") else "tensor_parallel and data_parallel"
            yield RecipeError(
                f"{place}.resources.GPU", f"how many GPUs each process takes follows from {key}", f"leave it out, and set {key}"
            )


def _a_node_has_room_for_ranks_that_belong_together(recipe: Recipe) -> Iterator[RecipeError]:
    tensor, most = recipe.learner.tensor_parallel, recipe.learner.placement.per_node
    if recipe.learner.tensor_parallel_nodes == "one" and most is not None and most % tensor:
        yield RecipeError(
            "learner.placement.per_node",
            f"{most} ranks are not whole groups of learner.tensor_parallel {tensor} ranks, each of which is on one node",
            f"set it to a multiple of {tensor}, or learner.tensor_parallel_nodes=several",
        )


def _engines_can_be_on_so_many_nodes(recipe: Recipe) -> Iterator[RecipeError]:
    for name, pool in recipe.generators.by_pool.items():
        place, nodes, workers = pool_place(name), pool.engine_nodes, pool.engine_workers
        if nodes == 1:
            continue
        if workers % nodes:
            yield RecipeError(
                f"{place}.engine_nodes",
                f"{workers} GPUs or processes of an engine cannot be on {nodes} nodes, as many on each",
                f"set it to a number that divides {workers}, or {place}.tensor_parallel to a multiple of {nodes}",
            )
        if pool.data_parallel > 1:
            yield RecipeError(
                f"{place}.engine_nodes",
                f"an engine of {place}.data_parallel {pool.data_parallel} ranks is on one node",
                f"set it to 1, or {place}.data_parallel to 1",
            )
        if not isinstance(recipe.network.tls, NoTlsConfig):
            yield RecipeError(
                f"{place}.engine_nodes",
                "vLLM does not encrypt what the nodes of an engine exchange, and network.tls asks for that",
                "set it to 1, or leave network.tls out if the network is yours",
            )


def _placements(recipe: Recipe) -> Iterator[tuple[str, PlacementConfig]]:
    """Yield each placement that the recipe gives, with its place."""
    yield "learner.placement", recipe.learner.placement
    yield "generators.placement", recipe.generators.placement
    if recipe.algorithm.teacher is not None:
        yield "algorithm.teacher.placement", recipe.algorithm.teacher.placement
    for name, pool in recipe.generators.pools.items():
        if pool.placement is not None:
            yield f"{pool_place(name)}.placement", pool.placement


PLACEMENT_RULES = (
    _pools_have_names_of_their_own,
    _somebody_plays_each_kind_of_episode,
    _each_part_can_be_planned,
    _gpus_follow_from_the_parts,
    _a_node_has_room_for_ranks_that_belong_together,
    _engines_can_be_on_so_many_nodes,
)
