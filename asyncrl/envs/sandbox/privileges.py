"""Gives up root's powers for good, and sets the limits that the kernel itself keeps for each process."""

import ctypes
import os
import resource

from asyncrl.envs.sandbox.limits import Limits
from asyncrl.envs.sandbox.messages import Start

MIB = 1 << 20
OPEN_FILES, OPEN_FILES_OF_AGENTS = 256, 4096
_DROP_FROM_BOUNDING_SET, _NO_NEW_PRIVILEGES = 24, 38
_CAPABILITY_VERSION_3 = 0x20080522
_CAPABILITIES = 64


class _CapabilityHeader(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint32), ("pid", ctypes.c_int)]


def drop_capabilities() -> None:
    """Give up every capability, also for programs that are executed later. Root is then an ordinary owner of files.

    Raises:
        OSError: the kernel refused.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    for capability in range(_CAPABILITIES):
        libc.prctl(_DROP_FROM_BOUNDING_SET, capability, 0, 0, 0)  # fails for those that the kernel has not
    header, none = _CapabilityHeader(_CAPABILITY_VERSION_3, 0), (ctypes.c_uint32 * 6)()
    if libc.capset(ctypes.byref(header), none) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)


def limit_this_process(limits: Limits) -> None:
    """Set the limits that do no harm to our own code: sizes of files, no core files, no real-time priority."""
    for kind, value in (
        (resource.RLIMIT_FSIZE, limits.file_mb * MIB),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_MEMLOCK, 0),
        (resource.RLIMIT_MSGQUEUE, 0),
        (resource.RLIMIT_RTPRIO, 0),
        (resource.RLIMIT_NICE, 0),
    ):
        resource.setrlimit(kind, (value, value))


def limit_command(request: Start) -> None:
    """Set what only the command's processes shall have, just before it is executed: memory, processor time, open files.

    An agent's may map what they like, as JavaScript engines map far more than they use.
    """
    limits = [
        (resource.RLIMIT_CPU, int(request.limits.cpu_s) + 1),
        (resource.RLIMIT_NOFILE, OPEN_FILES_OF_AGENTS if request.agent else OPEN_FILES),
    ]
    if request.agent is None:
        limits.append((resource.RLIMIT_AS, request.limits.memory_mb * MIB))
    for kind, value in limits:
        resource.setrlimit(kind, (value, value))
