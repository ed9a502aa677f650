"""Gloo in place of NCCL: what broadcasts do between processes on a machine without GPUs."""

import tempfile
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from asyncrl.weights.nccl.collective import Collective, Group

MOST_S = 60.0
"""When gloo itself gives up, which is much later than any deadline here."""


class Gloo(Collective):
    """Groups whose members meet in a file; see :class:`Collective`."""

    def token(self) -> bytes:
        return str(Path(tempfile.mkdtemp(prefix="asyncrl-gloo-")) / "meeting").encode()

    def join(self, token: bytes, member: int, members: int, device: torch.device) -> Group:
        assert device.type == "cpu"
        options = dist.ProcessGroupGloo._Options()
        options._devices = [dist.ProcessGroupGloo.create_device(hostname="127.0.0.1")]
        options._timeout = timedelta(seconds=MOST_S)
        return _GlooGroup(dist.ProcessGroupGloo(dist.FileStore(token.decode(), members), member, members, options))


class _GlooGroup(Group):
    def __init__(self, group: dist.ProcessGroupGloo) -> None:
        self._group = group

    def send(self, piece: torch.Tensor) -> None:
        self._broadcast(piece)

    def receive(self, piece: torch.Tensor) -> None:
        self._broadcast(piece)

    def _broadcast(self, piece: torch.Tensor) -> None:
        options = dist.BroadcastOptions()
        options.rootRank, options.rootTensor = 0, 0
        self._group.broadcast([piece], options).wait()

    def wait(self) -> None:
        pass

    def abort(self) -> None:
        pass  # gloo notices members that are gone; for one that is frozen, its own time-out comes
