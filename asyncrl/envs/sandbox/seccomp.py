"""Seccomp filters of our own, as the program that the kernel reads: what the backends leave open is refused here.

System calls are answered with an error number whatever their arguments, or refused for some values of one argument.
"""

import ctypes
import errno
import os
import platform
import struct

import msgspec

_LOAD, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_NUMBER_AT, _ARCHITECTURE_AT, _ARGUMENTS_AT = 0, 4, 16
_ALLOW, _ANSWER, _KILL = 0x7FFF0000, 0x00050000, 0x80000000
"""Run the call; answer with the error number that is added; end the process."""
_REFUSE = _ANSWER | errno.EPERM
_X32_CALLS = 0x40000000
_SET_SECCOMP, _FILTER_MODE, _NO_NEW_PRIVILEGES = 22, 2, 38
_UNIX, _INET, _INET6 = 1, 2, 10


class Allowed(msgspec.Struct, frozen=True):
    """The call is allowed for these values of the argument with this index, and refused for others."""

    argument: int
    values: tuple[int, ...]


_ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_NUMBERS = {
    # name: x86_64, aarch64
    "socket": (41, 198),
    "prlimit64": (302, 261),
    "fchmod": (91, 52),
    "fchown": (93, 55),
    "fsetxattr": (190, 7),
    "fremovexattr": (199, 16),
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
Rules = dict[str, Allowed | int]
"""What is answered to system calls, by name: an error number, of which 0 pretends that the call was done."""

OF_OTHERS: Rules = {"prlimit64": Allowed(0, (0,)), "socket": Allowed(0, (_UNIX, _INET, _INET6))}
"""Limits of other processes, with which they could be killed, and kinds of sockets that no network namespace separates."""

OF_OPEN_FILES: Rules = {"fchmod": 0, "fchown": 0, "fsetxattr": errno.ENOTSUP, "fremovexattr": errno.ENOTSUP}
"""Changes of files that are open, perhaps for reading only. Many programs ask for them by the way, so some are pretended."""

BEYOND_NAMESPACES: Rules = OF_OTHERS | {name: errno.EPERM for name in _NUMBERS if name not in OF_OTHERS | OF_OPEN_FILES}
"""All that reaches past namespaces without any capability: key rings, memory that no limit counts, tracing, and interfaces
whose bugs have let programs out before."""


def unsupported() -> str | None:
    """Why there is no filter for this machine; None if there is one."""
    return None if platform.machine() in _ARCHITECTURES else f"no seccomp filter for {platform.machine()} processors is known"


def program(rules: Rules) -> bytes:
    """The filter as an array of the kernel's ``sock_filter``. Each rule is skipped if the call is another one."""
    machine = platform.machine()
    instructions = [
        (_LOAD, 0, 0, _ARCHITECTURE_AT),
        (_EQUAL, 1, 0, _ARCHITECTURES[machine]),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER_AT),
        (_AT_LEAST, 0, 1, _X32_CALLS),
        (_RETURN, 0, 0, _REFUSE),
    ]
    for name, allowed in rules.items():
        body = [(_RETURN, 0, 0, _ANSWER | allowed)] if isinstance(allowed, int) else _only_for(allowed)
        number = _NUMBERS[name][list(_ARCHITECTURES).index(machine)]
        instructions += [(_EQUAL, 0, len(body), number), *body]
    return b"".join(struct.pack("=HBBI", *each) for each in [*instructions, (_RETURN, 0, 0, _ALLOW)])


def install(rules: Rules) -> None:
    """Filter the calls of the calling process and of all that it starts.

    Raises:
        OSError: the kernel refused.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    instructions = program(rules)
    buffer = ctypes.create_string_buffer(instructions, len(instructions))
    header = _Program(len(instructions) // _INSTRUCTION_BYTES, ctypes.addressof(buffer))
    libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    if libc.prctl(_SET_SECCOMP, _FILTER_MODE, ctypes.byref(header), 0, 0) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


_INSTRUCTION_BYTES = 8


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("instructions", ctypes.c_void_p)]


def _only_for(allowed: Allowed) -> list[tuple[int, int, int, int]]:
    """Load the low half of the argument, and allow or refuse; the number is not needed any more."""
    count = len(allowed.values)
    comparisons = [(_EQUAL, count - index, 0, value) for index, value in enumerate(allowed.values)]
    return [
        (_LOAD, 0, 0, _ARGUMENTS_AT + 8 * allowed.argument),
        *comparisons,
        (_RETURN, 0, 0, _REFUSE),
        (_RETURN, 0, 0, _ALLOW),
    ]
