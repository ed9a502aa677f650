"""The register of transports: which class carries the publications of which kind of the recipe's section ``weights``."""

from collections.abc import Mapping

from asyncrl.core.recipe.network import NoTlsConfig
from asyncrl.core.recipe.schema import Recipe
from asyncrl.core.recipe.weights import (
    AutoWeightsConfig,
    DiskWeightsConfig,
    NcclWeightsConfig,
    RayWeightsConfig,
    ShmWeightsConfig,
    WeightsConfig,
)
from asyncrl.run.publications.disk_transport import DiskTransport
from asyncrl.run.publications.nccl_transport import NcclTransport
from asyncrl.run.publications.ray_transport import RayTransport
from asyncrl.run.publications.shm_transport import ShmTransport
from asyncrl.run.publications.transport import PublicationTransport

TRANSPORTS: Mapping[type[WeightsConfig], type[PublicationTransport]] = {
    ShmWeightsConfig: ShmTransport,
    RayWeightsConfig: RayTransport,
    NcclWeightsConfig: NcclTransport,
    DiskWeightsConfig: DiskTransport,
}


def transport_of(recipe: Recipe, *, on_gpus: bool) -> type[PublicationTransport]:
    """Return the transport of a recipe. Kind ``auto`` takes NCCL between GPUs, which encrypts nothing, and Ray's object
    store otherwise.

    Args:
        on_gpus: learner and engines compute on GPUs.
    """
    if isinstance(recipe.weights, AutoWeightsConfig):
        return NcclTransport if on_gpus and isinstance(recipe.network.tls, NoTlsConfig) else RayTransport
    return TRANSPORTS[type(recipe.weights)]
