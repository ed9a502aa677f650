"""One learner rank: its number, its place in the parallel layout, and where all ranks meet.

Ranks are numbered in Megatron's own order: tensor parallel varies fastest, then context, then data, then pipeline. The
ranks of one tensor-parallel group are therefore neighbours, normally on one host.

For experts, the ranks of a pipeline stage are numbered a second time, again in Megatron's order: the ranks that divide
an expert vary fastest, then the ranks that divide the experts among them, then replicas.
"""

import os
import socket
from pathlib import Path

import msgspec

from asyncrl.core.parallel_layout import ParallelLayout


class FileMeeting(msgspec.Struct, frozen=True, tag="file"):
    """All ranks are on one host. They meet in the file at ``path``, which only their user may open."""

    path: str

    @classmethod
    def make(cls, path: Path) -> "FileMeeting":
        """Make a new file at ``path`` to meet in.

        Raises:
            FileExistsError: if there is something at ``path`` already, which might belong to somebody else.
        """
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
        return cls(str(path))


class TcpMeeting(msgspec.Struct, frozen=True, tag="tcp"):
    """The ranks are on several hosts. They meet at this address of rank 0's host."""

    host: str
    port: int

    @classmethod
    def listen(cls, host: str) -> "tuple[TcpMeeting, socket.socket]":
        """Open a socket on a free port of ``host``, an address of this host, and return the meeting and the socket. It
        listens on that address only."""
        listening = socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
        return cls(host, listening.getsockname()[1]), listening


class RankPlace(msgspec.Struct, frozen=True, kw_only=True):
    """The place of one learner rank in the parallel layout.

    Attributes:
        rank: number of this rank, counted from 0.
        layout: the parallel layout of all ranks.

    Raises:
        ValueError: if the numbers do not fit together.
    """

    rank: int
    layout: ParallelLayout = ParallelLayout()

    def __post_init__(self) -> None:
        layout = self.layout
        if layout.stage_ranks % (layout.expert * layout.expert_tensor):
            raise ValueError(f"expert x expert tensor does not divide a stage's {layout.stage_ranks} ranks: {layout}")
        if not 0 <= self.rank < layout.ranks:
            raise ValueError(f"rank {self.rank} is outside 0..{layout.ranks - 1}")

    @property
    def tensor_rank(self) -> int:
        """Place among the ranks that divide one layer."""
        return self.rank % self.layout.tensor

    @property
    def data_rank(self) -> int:
        """Place among the replicas: the number of the batch's slice that this rank trains."""
        return self.rank // (self.layout.tensor * self.layout.context) % self.layout.data

    @property
    def context_rank(self) -> int:
        """Place among the ranks that divide the tokens of each row."""
        return self.rank // self.layout.tensor % self.layout.context

    @property
    def pipeline_rank(self) -> int:
        """The pipeline stage that this rank belongs to."""
        return self.rank // self.layout.stage_ranks

    @property
    def replicas(self) -> int:
        """Number of ranks that hold the same weights outside experts."""
        return self.layout.data * self.layout.context

    @property
    def replica(self) -> int:
        """Place among the ranks that hold the same weights outside experts."""
        return self.data_rank * self.layout.context + self.context_rank

    @property
    def is_first_replica(self) -> bool:
        """Whether this is the first of the ranks that hold the same weights: it acts for all of them."""
        return self.replica == 0

    @property
    def expert_tensor_rank(self) -> int:
        """Place among the ranks that divide each expert."""
        return self.rank % self.layout.stage_ranks % self.layout.expert_tensor

    @property
    def expert_rank(self) -> int:
        """Place among the ranks that divide a layer's experts among them."""
        return self.rank % self.layout.stage_ranks // self.layout.expert_tensor % self.layout.expert

    @property
    def expert_replicas(self) -> int:
        """Number of ranks that hold the same parts of the same experts."""
        return self.layout.stage_ranks // (self.layout.expert_tensor * self.layout.expert)

    @property
    def expert_replica(self) -> int:
        """Place among the ranks that hold the same parts of the same experts."""
        return self.rank % self.layout.stage_ranks // (self.layout.expert_tensor * self.layout.expert)

    @property
    def is_slice_reporter(self) -> bool:
        """Whether this rank tells what became of the rows of its data-parallel slice: on the last pipeline stage, and first
        of those that divide layers and rows."""
        return self.pipeline_rank == self.layout.pipeline - 1 and self.tensor_rank == 0 and self.context_rank == 0

    @property
    def is_reporter(self) -> bool:
        """Whether this is the one rank that reports readings for all: on the last pipeline stage, and first in every
        other dimension."""
        return self.pipeline_rank == self.layout.pipeline - 1 and self.tensor_rank == 0 and self.is_first_replica


class RankSpec(RankPlace, frozen=True, kw_only=True):
    """The description of one learner rank: its place, and how it joins the others.

    Attributes:
        meeting: where the ranks meet.
        listening: on rank 0, if ranks meet over TCP: the file descriptor of the listening socket, which torch takes
            over.
        threads: CPU threads that the operators of this rank may use.

    Raises:
        ValueError: if the numbers do not fit together.
    """

    meeting: FileMeeting | TcpMeeting
    listening: int | None = None
    threads: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.threads < 1:
            raise ValueError(f"threads is {self.threads}; a rank needs at least 1")
