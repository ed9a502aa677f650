"""Seccomp filters of our own, as the program that the kernel reads: what the backends leave open is refused here.

System calls are answered with an error number whatever their arguments, or allowed for some values of their arguments only.
"""

import ctypes
import errno
import os
import platform
import socket
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
_DEFAULT, _TCP, _UDP = 0, 6, 17
_BOTH_FLAGS = socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK


class Allowed(msgspec.Struct, frozen=True):
    """The values that the argument with this index may have."""

    argument: int
    values: tuple[int, ...]


_ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_NUMBERS = {
    # name: x86_64, aarch64
    "socket": (41, 198),
    "socketpair": (53, 199),
    "prlimit64": (302, 261),
    "setpriority": (141, 140),
    "ioprio_set": (251, 30),
    "sched_setparam": (142, 118),
    "sched_setscheduler": (144, 119),
    "sched_setattr": (314, 274),
    "sched_setaffinity": (203, 122),
    "fchmod": (91, 52),
    "fchown": (93, 55),
    "fsetxattr": (190, 7),
    "fremovexattr": (199, 16),
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "shmget": (29, 194),
    "semget": (64, 190),
    "msgget": (68, 186),
    "fallocate": (285, 47),
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
    "inotify_init": (253, 26),  # which an ARM has in its newer form only
    "inotify_init1": (294, 26),
}
Rules = dict[str, tuple[Allowed, ...] | int]
"""What is answered to system calls, by name: an error number, of which 0 pretends that the call was done; or the call is allowed
if each of these arguments has an allowed value."""

_ITSELF = Allowed(0, (0,))
_ONE_PROCESS, _ONE_PROCESS_OF_IO = 0, 1
OF_OTHERS: Rules = {
    "prlimit64": (_ITSELF,),
    "sched_setparam": (_ITSELF,),
    "sched_setscheduler": (_ITSELF,),
    "sched_setattr": (_ITSELF,),
    "sched_setaffinity": (_ITSELF,),
    "setpriority": (Allowed(0, (_ONE_PROCESS,)), Allowed(1, (0,))),
    "ioprio_set": (Allowed(0, (_ONE_PROCESS_OF_IO,)), Allowed(1, (0,))),
}
"""Limits, priorities and processors of other processes, with which a program could kill those that watch it, or keep them from
running. Each call is allowed for the process that makes it, which it names as 0."""

_PAIRS_OF_SOCKETS: Rules = {"socketpair": (Allowed(0, (_UNIX,)),)}
ONLY_LOCAL_SOCKETS: Rules = {"socket": (Allowed(0, (_UNIX,)),)} | _PAIRS_OF_SOCKETS
"""No sockets but those in files, for a backend without a network namespace: Landlock knows ports of TCP and nothing else."""

_STREAMS = tuple(socket.SOCK_STREAM | flags for flags in (0, socket.SOCK_CLOEXEC, socket.SOCK_NONBLOCK, _BOTH_FLAGS))
SOCKETS_FOR_TCP: Rules = {
    "socket": (Allowed(0, (_UNIX, _INET, _INET6)), Allowed(1, _STREAMS), Allowed(2, (_DEFAULT, _TCP)))
} | _PAIRS_OF_SOCKETS
"""Streams alone, for a backend that looks where they are connected to."""

SOCKETS_OF_A_NAMESPACE: Rules = {
    "socket": (Allowed(0, (_UNIX, _INET, _INET6)), Allowed(2, (_DEFAULT, _TCP, _UDP)))
} | _PAIRS_OF_SOCKETS
"""No kinds of sockets that no network namespace separates, and no protocols that hardly anybody has looked at."""

OF_OPEN_FILES: Rules = {"fchmod": 0, "fchown": 0, "fsetxattr": errno.ENOTSUP, "fremovexattr": errno.ENOTSUP}
"""Changes of files that are open, perhaps for reading only. Many programs ask for them by the way, so some are pretended."""

WATCHES: Rules = {"inotify_init": errno.ENOSYS, "inotify_init1": errno.ENOSYS}
"""Who uses which file when, which is told of any file that can be named, also through a mount of one's own. Programs that find no
such calls look at their files now and then."""

RESERVED_ROOM: Rules = {"fallocate": errno.EOPNOTSUPP}
"""Room on the disk for what may be written later, which no limit of a file's size bounds. Programs do without, as on file systems
that have no such call."""

_BY_ARGUMENT = OF_OTHERS | SOCKETS_OF_A_NAMESPACE | WATCHES | RESERVED_ROOM
BEYOND_NAMESPACES: Rules = _BY_ARGUMENT | {name: errno.EPERM for name in _NUMBERS if name not in _BY_ARGUMENT | OF_OPEN_FILES}
"""All that reaches past namespaces without any capability: key rings, memory that no limit counts, tracing, and interfaces
whose bugs have let programs out before."""


def unsupported() -> str | None:
    """Say why there is no filter for this machine; None if there is one."""
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


def _only_for(allowed: tuple[Allowed, ...]) -> list[tuple[int, int, int, int]]:
    """Load the low half of each argument, and allow or refuse; the number is not needed any more."""
    checks: list[tuple[int, int, int, int]] = []
    for each in allowed:
        count = len(each.values)
        checks.append((_LOAD, 0, 0, _ARGUMENTS_AT + 8 * each.argument))
        checks += [(_EQUAL, count - index, 0, value) for index, value in enumerate(each.values)]
        checks.append((_RETURN, 0, 0, _REFUSE))
    return [*checks, (_RETURN, 0, 0, _ALLOW)]
