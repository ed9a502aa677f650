"""Says where ``tune`` may ask for more engines than there is room for: the run would refuse, and something else be turned."""

from collections.abc import Callable, Iterator

from asyncrl.core.measures.units import memory
from asyncrl.core.recipe.knobs import pool_of, with_setting
from asyncrl.core.recipe.schema import Recipe
from asyncrl.run.models.model_shape import ModelShape
from asyncrl.run.nodes.machine import Machine
from asyncrl.run.nodes.placement import NoRoom
from asyncrl.run.nodes.process_memory import processes_of


def room_to_tune(recipe: Recipe, shape: ModelShape, machine: Machine, place: Callable[[Recipe], object]) -> Iterator[str]:
    """Yield a remark if the most engines that ``tune`` may have do not fit.

    Args:
        place: finds a place for each process of a recipe; raises ``NoRoom``.
    """
    if recipe.tune is None:
        return
    most = {knob: bounds[1] for knob, bounds in recipe.tune.knobs.items() if pool_of(knob) is not None}
    if not most:
        return
    largest = with_setting(recipe, most)
    sizes = ", ".join(f"{knob} {value}" for knob, value in most.items())
    taken_back = "what has no room is taken back, and not asked for again"
    try:
        place(largest)
    except NoRoom as no_room:
        yield f"tune may ask for up to {sizes}, for which there is no room now ({no_room.problem}): {taken_back}"
        return
    needed = sum(process.count * process.each_bytes for process in processes_of(largest, shape))
    if machine.cluster is None and needed > machine.memory:
        yield (
            f"tune may ask for up to {sizes}, which need about {memory(needed)} of this machine's {memory(machine.memory)}: "
            "lower the most in tune.knobs"
        )
