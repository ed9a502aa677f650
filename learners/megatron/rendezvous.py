"""How the learner's ranks find each other, and on which addresses they listen while they do.

What always holds: no rank listens on an address that the other ranks do not need. Ranks on one host meet in a file that
only their user may open, and torch's gloo connects them over the loopback. Ranks on several hosts meet in torch's own
store at an address of rank 0, and gloo connects them over the interfaces that lead there. Neither gloo nor that store
checks who connects: between hosts, both need a network that only the cluster can reach.
"""

import datetime
import os
from typing import Any

import torch.distributed as dist

from asyncrl.core.network.interfaces import INTERFACES, LOOPBACK, address_towards, interface_of
from asyncrl.learners.rank import FileMeeting, RankSpec, TcpMeeting


def meet(spec: RankSpec, seconds: float) -> dist.Store:
    """Meet all other ranks, and return the store in which they have met. Sets the network interface of this process's
    gloo, unless it is set already.

    Args:
        spec: the place of this rank.
        seconds: how long to wait for the other ranks.

    Raises:
        RuntimeError: raised by torch, if not all ranks have come within ``seconds``.
    """
    timeout = datetime.timedelta(seconds=seconds)
    match spec.meeting:
        case FileMeeting(path=path):
            store: dist.Store = dist.FileStore(path, spec.layout.ranks)
            store.set_timeout(timeout)
            ours = LOOPBACK
        case TcpMeeting(host=host, port=port):
            is_host = spec.rank == 0
            listening: dict[str, Any] = {"master_listen_fd": spec.listening} if is_host else {}
            store = dist.TCPStore(host, port, spec.layout.ranks, is_master=is_host, timeout=timeout, **listening)
            ours = address_towards(host, port)
    interface = interface_of(ours)
    if interface is not None:
        os.environ.setdefault(INTERFACES, interface)
    store.set(f"rank {spec.rank}", "here")
    store.wait([f"rank {rank}" for rank in range(spec.layout.ranks)], timeout)
    return store
