"""The seccomp filter of the bubblewrap backend, as the program that the kernel reads.

It refuses the system calls that reach past namespaces without any capability: key rings, memory that no limit counts, tracing,
and interfaces whose bugs have let programs out before.
"""

import platform
import struct

import msgspec

_LOAD, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_NUMBER_AT, _ARCHITECTURE_AT = 0, 4
_ALLOW, _REFUSE, _KILL = 0x7FFF0000, 0x00050000 | 1, 0x80000000
"""Run the call; return EPERM; end the process."""
_X32_CALLS = 0x40000000


class _Machine(msgspec.Struct, frozen=True):
    """The kernel's number for the architecture, and those of the refused calls."""

    architecture: int
    refused: tuple[int, ...]


_CALLS = {
    # name: x86_64, aarch64
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "shmget": (29, 194),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "bpf": (321, 280),
    "userfaultfd": (323, 282),
    "perf_event_open": (298, 241),
    "keyctl": (250, 219),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "unshare": (272, 97),
    "setns": (308, 268),
    "open_by_handle_at": (304, 265),
}
_MACHINES = {
    "x86_64": _Machine(0xC000003E, tuple(sorted(numbers[0] for numbers in _CALLS.values()))),
    "aarch64": _Machine(0xC00000B7, tuple(sorted(numbers[1] for numbers in _CALLS.values()))),
}


def unsupported() -> str | None:
    """Why there is no filter for this machine; None if there is one."""
    return None if platform.machine() in _MACHINES else f"no seccomp filter for {platform.machine()} processors is known"


def deny_program(machine: str | None = None) -> bytes:
    """The filter for ``machine`` (default: this one), as an array of the kernel's ``sock_filter``."""
    this = _MACHINES[machine or platform.machine()]
    count = len(this.refused)
    program = [
        (_LOAD, 0, 0, _ARCHITECTURE_AT),
        (_EQUAL, 1, 0, this.architecture),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER_AT),
        (_AT_LEAST, count + 1, 0, _X32_CALLS),
        *((_EQUAL, count - index, 0, number) for index, number in enumerate(this.refused)),
        (_RETURN, 0, 0, _ALLOW),
        (_RETURN, 0, 0, _REFUSE),
    ]
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in program)
