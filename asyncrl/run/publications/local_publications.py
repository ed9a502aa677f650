"""Makes what brings publications to the nodes of engines, by a recipe's section ``weights``."""

from collections.abc import Callable
from functools import partial
from typing import assert_never

from asyncrl.core.network.tls import TlsKeys
from asyncrl.core.recipe.schema import Recipe
from asyncrl.core.recipe.weights import (
    AutoWeightsConfig,
    DiskWeightsConfig,
    NcclWeightsConfig,
    ShmWeightsConfig,
    TcpWeightsConfig,
)
from asyncrl.run.folder.run_folder import RunFolder
from asyncrl.run.publications.disk_publications import DiskPublications, make_disk_mirror
from asyncrl.run.publications.mirrors import Broadcasts, LocalPublications, MirrorHandle, Mirrors, SharedMemoryAlone, make_mirror
from asyncrl.run.publications.routes import stored_in


def make_local_publications(
    recipe: Recipe, folder: RunFolder, secret: bytes, tls: TlsKeys | None, *, nccl: bool
) -> LocalPublications:
    """Return what brings publications to the nodes of the engines.

    Args:
        secret: what mirrors show to one another.
        tls: the run's keys if its connections are encrypted.
        nccl: what :func:`asyncrl.run.publications.routes.by_nccl` returned.
    """
    weights, seconds = recipe.weights, recipe.deadlines.publish
    match weights:
        case NcclWeightsConfig():
            return Broadcasts(everywhere=True)
        case AutoWeightsConfig() if nccl:
            return Broadcasts(everywhere=False)
        case AutoWeightsConfig() | TcpWeightsConfig():
            make: Callable[[str], MirrorHandle] = partial(make_mirror, folder=folder, secret=secret, tls=tls)
            return Mirrors(make, seconds)
        case ShmWeightsConfig():
            return SharedMemoryAlone()
        case DiskWeightsConfig():
            stored = stored_in(weights, folder.path)
            return DiskPublications(partial(make_disk_mirror, folder=folder, weights=stored, delta=weights.delta), seconds)
        case _:
            assert_never(weights)
