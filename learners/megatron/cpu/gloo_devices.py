"""Lets all of a rank's gloo groups share one connection device.

torch gives every group a device of its own, and a device has a thread that wakes up a hundred times a second, even while nothing
is sent. Megatron makes eighteen groups on each rank of a CPU: without this a rank that waits wakes up 1,800 times a second.
"""

import datetime
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d

from asyncrl.core.network.interfaces import INTERFACES


@contextmanager
def shared_devices() -> Iterator[None]:
    """Have the gloo groups that torch makes in this context share devices: one for each interface, as each group would have."""
    torchs: Any = distributed_c10d.ProcessGroupGloo
    named = os.environ.get(INTERFACES, "")
    devices = [torchs.create_device(interface=name) for name in named.split(",")] if named else [torchs.create_default_device()]

    class OnSharedDevices(torchs):
        def __init__(self, store: dist.Store, rank: int, size: int, timeout: datetime.timedelta) -> None:
            options = torchs._Options()
            options._devices, options._threads, options._timeout = devices, 2 * len(devices), timeout
            super().__init__(store, rank, size, options)

    module: Any = distributed_c10d
    module.ProcessGroupGloo = OnSharedDevices
    try:
        yield
    finally:
        module.ProcessGroupGloo = torchs
