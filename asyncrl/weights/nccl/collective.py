"""The collective that broadcasts bytes from one process to a few others: NCCL between GPUs, as vLLM wraps it.

vLLM's own dense back-end for NCCL cannot be used here: only rank 0 of the learner sends, and
``WeightSource.held_names`` is ignored, so that every other rank's part would have to be gathered there first. ``nccl_m2n`` wants
every parameter on all ranks, which pipeline stages do not have. So each rank has communicators of its own, and all send side by
side. Members find each other by NCCL's unique id, which they get on a connection that has shown a secret; vLLM's meeting
in a TCPStore would unpickle what any client sends.
"""

from typing import TYPE_CHECKING, Protocol

import torch

if TYPE_CHECKING:
    from vllm.distributed.device_communicators.pynccl import PyNcclCommunicator


class Group(Protocol):
    """A few processes, of which member 0 sends to all others. No call has a deadline of its own; see :meth:`abort`."""

    def send(self, piece: torch.Tensor) -> None:
        """Send a piece, uint8 [n], which lies in host memory; returns perhaps before it has been sent. Called on member 0."""

    def receive(self, piece: torch.Tensor) -> None:
        """Fill a piece, uint8 [n] on the group's device, with what is sent; returns perhaps before that is done.

        Nothing else may use the piece meanwhile.
        """

    def wait(self) -> None:
        """Wait until everything has been sent or received."""

    def abort(self) -> None:
        """Leave the group, and end what is under way, even if another member is gone. May be called in any thread."""


class Collective(Protocol):
    """Makes groups. All members of a group call :meth:`join` at the same time, each with its own number."""

    def token(self) -> bytes:
        """Return by what the members of one group find each other; called by member 0."""

    def join(self, token: bytes, member: int, members: int, device: torch.device) -> Group:
        """Join a group; returns when all members have."""


class Nccl(Collective):
    """NCCL, by vLLM's wrapper; see :class:`Collective`."""

    def token(self) -> bytes:
        """Return a unique id of NCCL's."""
        from vllm.distributed.device_communicators.pynccl_wrapper import NCCLLibrary

        return bytes(NCCLLibrary().ncclGetUniqueId().internal)

    def join(self, token: bytes, member: int, members: int, device: torch.device) -> Group:
        """Make a communicator with the other members.

        Raises:
            RuntimeError: vLLM does not use NCCL here.
        """
        from vllm.distributed.weight_transfer.nccl_common import uid_init_process_group

        with torch.cuda.device(device):
            communicator = uid_init_process_group(token, member, members, device)
            if communicator.disabled:  # its broadcasts would do nothing
                raise RuntimeError("vLLM does not use NCCL in this process; unset VLLM_DISABLE_PYNCCL")
            return _NcclGroup(communicator, device)


class _NcclGroup(Group):
    """A communicator and a stream of its own, so that neither training nor sampling waits in line behind a broadcast."""

    def __init__(self, communicator: "PyNcclCommunicator", device: torch.device) -> None:
        self._communicator, self._device = communicator, device
        self._stream = torch.cuda.Stream(device)

    def send(self, piece: torch.Tensor) -> None:
        with torch.cuda.device(self._device), torch.cuda.stream(self._stream):
            # Allocated on this stream, so that its memory is used again only after the broadcast has read it.
            self._communicator.broadcast(piece.to(self._device, non_blocking=True), src=0, stream=self._stream)

    def receive(self, piece: torch.Tensor) -> None:
        with torch.cuda.device(self._device):
            self._communicator.broadcast(piece, src=0, stream=self._stream)

    def wait(self) -> None:
        self._stream.synchronize()

    def abort(self) -> None:
        self._communicator.destroy()
