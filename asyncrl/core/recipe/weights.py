"""The recipe's section on the weights on their way from the learner to the engines."""

from asyncrl.core.recipe.section import Count, Section, Text


class PublicationSection(Section, frozen=True):
    """Base of the ways that weights take.

    Attributes:
        probe_every: publications between two probes: an engine and the learner compute the log-probabilities of a few rows of the
            batch with the version just published, and the run stops if they differ by more than the rounding of their types. The
            first publication is always probed. null for never.
    """

    probe_every: Count | None = 20


class AutoWeightsConfig(PublicationSection, frozen=True, tag_field="kind", tag="auto"):
    """The fastest way to each engine: the memory of its node where a learner rank wrote there; between nodes NCCL if learner and
    engines compute on GPUs and ``network.tls`` does not ask for encryption, Ray's object store otherwise.
    """


class ShmWeightsConfig(PublicationSection, frozen=True, tag_field="kind", tag="shm"):
    """Through the memory of the learner's node alone. A run with engines on other nodes is refused."""


class RayWeightsConfig(PublicationSection, frozen=True, tag_field="kind", tag="ray"):
    """As kind ``auto``, but always Ray's object store between nodes."""


class NcclWeightsConfig(PublicationSection, frozen=True, tag_field="kind", tag="nccl"):
    """By NCCL from the GPU of each learner rank to those of every engine, also on the same node. Refused without GPUs."""


class DiskWeightsConfig(PublicationSection, frozen=True, tag_field="kind", tag="disk"):
    """Through a folder on a file system that all nodes share, with a folder for each version. Nodes need not reach each other.
    Engines on the node of all learner ranks share these ranks' memory.

    Attributes:
        folder: where versions are stored, which all nodes see under the same path; null means ``weights`` in the run folder.
        delta: store only the blocks of 4 KiB that have changed since the version before, compressed, if at most half of them
            have; every 16th version is stored whole. The learner's nodes then hold one copy of their weights more.
    """

    folder: Text | None = None
    delta: bool = False


WeightsConfig = AutoWeightsConfig | ShmWeightsConfig | RayWeightsConfig | NcclWeightsConfig | DiskWeightsConfig
