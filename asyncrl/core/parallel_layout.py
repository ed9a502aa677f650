"""How the ranks of the learner divide a model and a batch between them."""

from math import gcd

import msgspec


class ParallelLayout(msgspec.Struct, frozen=True, kw_only=True):
    """Ranks along each dimension. Its text names tensor, pipeline and data, and those other dimensions that are above 1.

    Attributes:
        tensor: ranks that divide each layer.
        pipeline: stages, each with as many layers as any other.
        data: replicas, each with its slice of the batch.
        context: ranks that divide the tokens of each row.
        expert: ranks of a stage that share out each layer's experts.
        expert_tensor: ranks of a stage that divide each expert.
        virtual_pipeline: chunks of layers that each stage holds.
    """

    tensor: int = 1
    pipeline: int = 1
    data: int = 1
    context: int = 1
    expert: int = 1
    expert_tensor: int = 1
    virtual_pipeline: int = 1

    @property
    def stage_ranks(self) -> int:
        """Number of ranks of one pipeline stage."""
        return self.tensor * self.context * self.data

    @property
    def ranks(self) -> int:
        """Number of ranks in all. Experts have no ranks of their own."""
        return self.stage_ranks * self.pipeline

    @property
    def least_data(self) -> int:
        """The fewest replicas whose stages can share out and divide the experts; other numbers are multiples of it."""
        experts = self.expert * self.expert_tensor
        return experts // gcd(experts, self.tensor * self.context)

    def __str__(self) -> str:
        always = ("tensor", "pipeline", "data")
        sizes = msgspec.structs.asdict(self).items()
        return ", ".join(f"{name.replace('_', ' ')} {size}" for name, size in sizes if size > 1 or name in always)
