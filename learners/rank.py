"""Where one learner rank stands: its number, the rendezvous of all ranks, and the grid TP x CP x DP x PP they form.

Ranks are numbered with tensor parallel fastest, then context, then data, then pipeline, which is Megatron's own order; the ranks
of one tensor-parallel group are therefore neighbours, normally on one host.

For experts the ranks of a pipeline stage form a grid of their own, in Megatron's order again: those that divide an expert
fastest, then those that share the experts out, then replicas.
"""

import msgspec


class RankSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One rank of the learner.

    Attributes:
        rank: number of this rank, from 0.
        world_size: number of ranks; must be ``tensor * pipeline * data * context``.
        address: host of rank 0, reachable from all ranks.
        port: free port on that host, where the ranks meet.
        tensor, pipeline, data, context: ranks along each dimension.
        expert: ranks that share out a layer's experts.
        expert_tensor: ranks that divide each expert.
        threads: CPU threads the operators of this rank may use.

    Raises:
        ValueError: if the numbers do not fit together.
    """

    rank: int
    world_size: int
    address: str
    port: int
    tensor: int = 1
    pipeline: int = 1
    data: int = 1
    context: int = 1
    expert: int = 1
    expert_tensor: int = 1
    threads: int = 1

    def __post_init__(self) -> None:
        if self.tensor * self.pipeline * self.data * self.context != self.world_size:
            raise ValueError(
                f"tensor {self.tensor} x pipeline {self.pipeline} x data {self.data} x context {self.context} is not world_size "
                f"{self.world_size}"
            )
        if self.stage_ranks % (self.expert * self.expert_tensor):
            raise ValueError(
                f"expert {self.expert} x expert_tensor {self.expert_tensor} does not divide a stage's {self.stage_ranks} ranks"
            )
        if not 0 <= self.rank < self.world_size:
            raise ValueError(f"rank {self.rank} is outside 0..{self.world_size - 1}")
        if self.threads < 1:
            raise ValueError(f"threads is {self.threads}; a rank needs at least one")

    @property
    def tensor_rank(self) -> int:
        """Place among the ranks that split one layer."""
        return self.rank % self.tensor

    @property
    def data_rank(self) -> int:
        """Place among the replicas: which slice of the batch this rank trains."""
        return self.rank // (self.tensor * self.context) % self.data

    @property
    def context_rank(self) -> int:
        """Place among the ranks that divide the tokens of each row."""
        return self.rank // self.tensor % self.context

    @property
    def pipeline_rank(self) -> int:
        """Pipeline stage."""
        return self.rank // self.stage_ranks

    @property
    def is_first_replica(self) -> bool:
        """Of the ranks that hold the same weights, the one that speaks for them."""
        return self.data_rank == self.context_rank == 0

    @property
    def stage_ranks(self) -> int:
        """Ranks of one pipeline stage."""
        return self.tensor * self.context * self.data

    @property
    def expert_tensor_rank(self) -> int:
        """Place among the ranks that divide each expert."""
        return self.rank % self.stage_ranks % self.expert_tensor

    @property
    def expert_rank(self) -> int:
        """Place among the ranks that share out a layer's experts."""
        return self.rank % self.stage_ranks // self.expert_tensor % self.expert

    @property
    def is_first_expert_replica(self) -> bool:
        """Of the ranks that hold the same parts of the same experts, the one that speaks for them."""
        return self.rank % self.stage_ranks < self.expert_tensor * self.expert

    @property
    def is_reporter(self) -> bool:
        """True on exactly one rank of the run: the one whose readings stand for all (last stage, first of everything else)."""
        return self.pipeline_rank == self.pipeline - 1 and self.tensor_rank == 0 and self.is_first_replica
