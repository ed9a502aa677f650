"""Makes what brings publications to the nodes of engines, by a recipe's section ``weights``."""

from collections.abc import Callable
from functools import partial
from typing import assert_never

from asyncrl.core.recipe.schema import Recipe
from asyncrl.core.recipe.weights import AutoWeights, DiskWeights, ShmWeights
from asyncrl.core.tls import TlsKeys
from asyncrl.run.disk_publications import DiskPublications, make_disk_mirror
from asyncrl.run.folder import RunFolder
from asyncrl.run.mirrors import LocalPublications, MirrorHandle, Mirrors, SharedMemoryAlone, make_mirror
from asyncrl.run.weight_routes import stored_in


def make_local_publications(recipe: Recipe, folder: RunFolder, secret: bytes, tls: TlsKeys | None) -> LocalPublications:
    """Return what brings publications to the nodes of the engines.

    Args:
        secret: what mirrors show to one another.
        tls: the run's keys if its connections are encrypted.
    """
    weights, seconds = recipe.weights, recipe.deadlines.publish
    match weights:
        case AutoWeights():
            make: Callable[[str], MirrorHandle] = partial(make_mirror, folder=folder, secret=secret, tls=tls)
            return Mirrors(make, seconds)
        case ShmWeights():
            return SharedMemoryAlone()
        case DiskWeights():
            stored = stored_in(weights, folder.path)
            return DiskPublications(partial(make_disk_mirror, folder=folder, weights=stored, delta=weights.delta), seconds)
        case _:
            assert_never(weights)
