"""Where one learner rank stands: its number, where all ranks meet, and its place in their layout.

Ranks are numbered with tensor parallel fastest, then context, then data, then pipeline, which is Megatron's own order; the ranks
of one tensor-parallel group are therefore neighbours, normally on one host.

For experts the ranks of a pipeline stage are numbered anew, in Megatron's order again: those that divide an expert fastest, then
those that share the experts out, then replicas.
"""

import os
import socket
from pathlib import Path

import msgspec

from asyncrl.core.parallel_layout import ParallelLayout


class FileMeeting(msgspec.Struct, frozen=True, tag="file"):
    """All ranks are on one host, and meet in the file at ``path``, which only their user may open."""

    path: str

    @classmethod
    def make(cls, path: Path) -> "FileMeeting":
        """Make a new file at ``path`` to meet in.

        Raises:
            FileExistsError: if something is there already, which might be somebody else's.
        """
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
        return cls(str(path))


class TcpMeeting(msgspec.Struct, frozen=True, tag="tcp"):
    """Ranks are on several hosts, and meet at this address of rank 0's host."""

    host: str
    port: int

    @classmethod
    def listen(cls, host: str) -> "tuple[TcpMeeting, socket.socket]":
        """A meeting at a free port of ``host``, which is an address of this host, and the socket that listens there only."""
        listening = socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
        return cls(host, listening.getsockname()[1]), listening


class RankSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One rank of the learner.

    Attributes:
        rank: number of this rank, from 0.
        listening: on rank 0, where ranks meet over TCP, the file number of the listening socket, which torch takes over.
        threads: CPU threads the operators of this rank may use.

    Raises:
        ValueError: if the numbers do not fit together.
    """

    rank: int
    meeting: FileMeeting | TcpMeeting
    layout: ParallelLayout = ParallelLayout()
    listening: int | None = None
    threads: int = 1

    def __post_init__(self) -> None:
        layout = self.layout
        if layout.stage_ranks % (layout.expert * layout.expert_tensor):
            raise ValueError(f"expert x expert tensor does not divide a stage's {layout.stage_ranks} ranks: {layout}")
        if not 0 <= self.rank < layout.ranks:
            raise ValueError(f"rank {self.rank} is outside 0..{layout.ranks - 1}")
        if self.threads < 1:
            raise ValueError(f"threads is {self.threads}; a rank needs at least one")

    @property
    def tensor_rank(self) -> int:
        """Place among the ranks that split one layer."""
        return self.rank % self.layout.tensor

    @property
    def data_rank(self) -> int:
        """Place among the replicas: which slice of the batch this rank trains."""
        return self.rank // (self.layout.tensor * self.layout.context) % self.layout.data

    @property
    def context_rank(self) -> int:
        """Place among the ranks that divide the tokens of each row."""
        return self.rank // self.layout.tensor % self.layout.context

    @property
    def pipeline_rank(self) -> int:
        """The pipeline stage that this rank is of."""
        return self.rank // self.layout.stage_ranks

    @property
    def is_first_replica(self) -> bool:
        """Whether this rank speaks for all that hold the same weights."""
        return self.data_rank == self.context_rank == 0

    @property
    def expert_tensor_rank(self) -> int:
        """Place among the ranks that divide each expert."""
        return self.rank % self.layout.stage_ranks % self.layout.expert_tensor

    @property
    def expert_rank(self) -> int:
        """Place among the ranks that share out a layer's experts."""
        return self.rank % self.layout.stage_ranks // self.layout.expert_tensor % self.layout.expert

    @property
    def is_first_expert_replica(self) -> bool:
        """Whether this rank speaks for all that hold the same parts of the same experts."""
        return self.rank % self.layout.stage_ranks < self.layout.expert_tensor * self.layout.expert

    @property
    def is_reporter(self) -> bool:
        """Whether this is the one rank whose readings stand for all: on the last stage, the first of everything else."""
        return self.pipeline_rank == self.layout.pipeline - 1 and self.tensor_rank == 0 and self.is_first_replica
