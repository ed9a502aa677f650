"""How new weights will reach the engines of a planned run, and which nodes have too little memory for them."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from asyncrl.core.adapters import AdapterSettings
from asyncrl.core.measures.units import memory
from asyncrl.core.recipe.schema import Recipe
from asyncrl.run.models.model_shape import ELEMENT_BYTES, ModelShape
from asyncrl.run.nodes.machine import Machine
from asyncrl.run.nodes.process_kinds import LEARNER
from asyncrl.run.publications.transport import STORE, ObjectStore, PublicationTransport, Room, Routes
from asyncrl.run.publications.transports import transport_of


def weight_routes(
    recipe: Recipe, machine: Machine, shape: ModelShape, placed: Mapping[str, Sequence[str]], run: Path | None
) -> tuple[type[PublicationTransport], Routes]:
    """Return what will carry new weights, and from and to which nodes of a plan."""
    engines_on = Counter(node for pool in recipe.generators.by_pool for node in placed[pool])
    on_gpus = machine.gpus > 0
    lora, adapters = recipe.learner.lora, AdapterSettings.of(recipe)
    published = shape.parameters if lora is None or adapters is None else shape.adapter_parameters(lora)
    nodes = () if machine.cluster is None else machine.cluster.alive
    stores = {node.id: ObjectStore(node.host, int(node.has[STORE])) for node in nodes if STORE in node.has}
    room = Room(published * ELEMENT_BYTES[recipe.learner.dtype], machine.gpu_memory, stores)
    routes = Routes(recipe, placed[LEARNER], engines_on, run or Path("RUN"), on_gpus=on_gpus, room=room)
    return transport_of(recipe, on_gpus=on_gpus), routes


def full_nodes(transport: type[PublicationTransport], routes: Routes, free_memory: Mapping[str, int]) -> Iterator[str]:
    """Remark that new weights do not fit into the memory file systems of nodes on which no rank writes.

    Args:
        free_memory: bytes that are free there, by node.
    """
    assert routes.room is not None
    for node in sorted(free_memory.keys() & routes.apart.keys() & routes.room.stores.keys()):
        store = routes.room.stores[node]
        needed = transport.memory_apart(routes.room.version, store.size)
        if free_memory[node] < needed:
            yield (
                f"/dev/shm on {store.host} has {memory(free_memory[node])} free, and new weights take up to {memory(needed)} "
                "there, some of it in Ray's object store, which may have it already: engines there end when it is full, and come "
                "back when there is room; make it larger (--shm-size for a container, else mount -o remount,size=...)"
            )
