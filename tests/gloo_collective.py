"""Gloo in place of NCCL: what broadcasts do between processes on a machine without GPUs."""

from datetime import timedelta
from typing import ClassVar

import torch
import torch.distributed as dist

from asyncrl.weights.nccl.collective import Collective, Group

MOST_S = 60.0
"""When gloo itself gives up, which is much later than any deadline here."""


class Gloo(Collective):
    """Groups whose members meet in the process that makes their token, and leave no file behind; see :class:`Collective`."""

    _meetings: ClassVar[list[dist.TCPStore]] = []

    def token(self) -> bytes:
        self._meetings.append(dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False))
        return str(self._meetings[-1].port).encode()

    def join(self, token: bytes, member: int, members: int, device: torch.device) -> Group:
        assert device.type == "cpu"
        options = dist.ProcessGroupGloo._Options()
        options._devices = [dist.ProcessGroupGloo.create_device(hostname="127.0.0.1")]
        options._timeout = timedelta(seconds=MOST_S)
        meeting = dist.TCPStore("127.0.0.1", int(token), members, is_master=False, timeout=options._timeout)
        return _GlooGroup(dist.ProcessGroupGloo(meeting, member, members, options))


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
