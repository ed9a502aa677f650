"""Which generator of the run a process is, and what its engine is started with on each of its nodes."""

import msgspec

from asyncrl.core.adapters import AdapterSettings
from asyncrl.core.ids import WorkerId
from asyncrl.core.process.control_groups import usable_cores
from asyncrl.core.recipe.schema import Recipe
from asyncrl.generators.vllm.engine_arguments import EngineSettings
from asyncrl.generators.vllm.engine_node import EngineNode


class GeneratorSpec(msgspec.Struct, frozen=True):
    """Which generator of the run a process is. One that replaces a dead one has a new number.

    Attributes:
        worker: its name.
        number: one that no other generator of the run has had.
        engines_here: how many engines share the cores of its node.
    """

    worker: WorkerId
    number: int
    engines_here: int


def engine_settings(recipe: Recipe, spec: GeneratorSpec, model_path: str, node: EngineNode, *, trains: bool) -> EngineSettings:
    """Return what a generator's engine is started with on one of its nodes.

    Args:
        recipe: the run's, whose section ``generators`` is that of the generator's pool.
        trains: whether the generator is one of a run that trains; evaluations alone are of whole models.
    """
    plays = trains and recipe.generators.role != "evaluation"
    return EngineSettings(
        msgspec.structs.replace(recipe.generators, count=spec.engines_here),  # those that share the cores with it
        model_path,
        recipe.model.max_context,
        recipe.seed + spec.number,
        adapters=AdapterSettings.of(recipe) if trains else None,
        yields=recipe.learner.layout.ranks < usable_cores(),
        tells_experts=plays and recipe.learner.experts.replay,
        node=node,
    )
