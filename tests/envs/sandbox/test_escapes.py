"""Every program of ``escapes.py`` is contained by every backend that works on this machine."""

import contextlib
import itertools
import os
import platform
import resource
import select
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from escapes import ESCAPES, HELPERS, Escape
from forked_sandbox import ForkedSandbox

from asyncrl.core.errors import RecipeError
from asyncrl.envs.sandbox.limits import Limits
from asyncrl.envs.sandbox.messages import Choice
from asyncrl.envs.sandbox.privileges import drop_capabilities

_NUMBERS = {
    # name: x86_64, aarch64
    "MEMFD_CREATE": (319, 279),
    "SHMGET": (29, 194),
    "SEMGET": (64, 190),
    "MSGGET": (68, 186),
    "FALLOCATE": (285, 47),
    "PRLIMIT": (302, 261),
    "PTRACE": (101, 117),
    "PROCESS_VM_READV": (310, 270),
    "CLONE": (56, 220),
    "SCHED_SETATTR": (314, 274),
    "IOPRIO_SET": (251, 30),
    "MIGRATE_PAGES": (256, 238),
    "MOVE_PAGES": (279, 239),
    "PROCESS_MADVISE": (440, 440),
    "PIDFD_GETFD": (438, 438),
    "KCMP": (312, 272),
}
_SYSTEM_CALLS = (
    # name, number on x86_64, number on aarch64, arguments (None: a buffer of zeros)
    ("mount", 165, 40, (None, b".", b"tmpfs", 0, 0)),
    ("unmount", 166, 39, (b"/", 2)),
    ("unshare user", 272, 97, (0x10000000,)),
    ("unshare network", 272, 97, (0x40000000,)),
    ("join a namespace", 308, 268, (0, 0)),
    ("chroot", 161, 51, (b".",)),
    ("pivot_root", 155, 41, (b".", b".")),
    ("bpf", 321, 280, (0, None, 16)),
    ("io_uring", 425, 425, (1, None)),
    ("userfaultfd", 323, 282, (1,)),
    ("performance counters", 298, 241, (None, 0, -1, -1, 0)),
    ("key ring", 250, 219, (0, -3, 0)),
    ("new key", 248, 217, (b"user", b"name", b"x", 1, -3)),
    ("file by handle", 304, 265, (-100, None, 0)),
    ("clone of a mount", 428, 428, (-100, b".", 1)),
    ("new file system", 430, 430, (b"tmpfs", 0)),
    ("module", 175, 105, (None, 1, b"")),
    ("new kernel", 246, 104, (0, 0, 0, 0)),
    ("swap", 167, 224, (b"file", 0)),
    ("restart", 169, 142, (0xFEE1DEAD, 672274793, 0x89ABCDEF, 0)),
    ("kernel log", 103, 116, (3, None, 99)),
    ("accounting", 163, 89, (b"file",)),
    ("watching files", 300, 262, (0, 0)),
)


class Outside(msgspec.Struct, frozen=True):
    """What a program must not reach."""

    folder: Path
    victim: subprocess.Popen[bytes]
    port: int
    datagrams: socket.socket

    def harm(self) -> list[str]:
        """What has been done to it."""
        secret = self.folder / "secret"
        harmed = {
            "the secret was changed": secret.read_text() != "s3cret",
            "its mode was changed": secret.stat().st_mode & 0o777 != 0o600,
            "the folder was changed": sorted(path.name for path in self.folder.iterdir()) != ["secret", "socket"],
            "a datagram arrived": bool(select.select([self.datagrams], [], [], 0)[0]),
            "the victim was killed": self.victim.poll() is not None,
            "the victim was stopped": "T (stopped)" in Path(f"/proc/{self.victim.pid}/status").read_text(),
        }
        return [what for what, happened in harmed.items() if happened]

    def seen_from_inside(self, parent: int) -> str:
        """Definitions for the programs, which the process ``parent`` has run."""
        column = ("x86_64", "aarch64").index(platform.machine())
        values = {name: numbers[column] for name, numbers in _NUMBERS.items()}
        values |= {"OUTSIDE": str(self.folder), "VICTIM": self.victim.pid, "PARENT": parent, "PORT": self.port}
        calls = [(name, numbers[column], arguments) for name, *numbers, arguments in _SYSTEM_CALLS]
        return "".join(f"{name} = {value!r}\n" for name, value in (values | {"SYSTEM_CALLS": calls}).items())


def scheduling(process: int) -> tuple[object, ...]:
    """When and where the kernel lets a process run, and how long it may live."""
    return (
        os.sched_getscheduler(process),
        os.getpriority(os.PRIO_PROCESS, process),
        os.sched_getaffinity(process),
        resource.prlimit(process, resource.RLIMIT_CPU),
    )


@pytest.fixture(scope="module")
def outside(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Outside]:
    folder = tmp_path_factory.mktemp("outside")
    secret = folder / "secret"
    secret.write_text("s3cret")
    secret.chmod(0o600)
    victim = subprocess.Popen(["sleep", "1000"], start_new_session=True, preexec_fn=drop_capabilities)
    with contextlib.ExitStack() as kept:
        server = kept.enter_context(socket.create_server(("127.0.0.1", 0)))
        datagrams = kept.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        datagrams.bind(server.getsockname())
        for address in (str(folder / "socket"), f"\0{folder}"):
            listening = kept.enter_context(socket.socket(socket.AF_UNIX))
            listening.bind(address)
            listening.listen()
        os.set_inheritable(kept.enter_context(secret.open()).fileno(), True)
        yield Outside(folder, victim, server.getsockname()[1], datagrams)
    victim.kill()
    victim.wait()


def _told(param: tuple[Choice, bool]) -> str:
    return f"{param[0].value} of an ordinary user" if param[1] else param[0].value


@pytest.fixture(scope="module", params=itertools.product((Choice.SANDLOCK, Choice.BUBBLEWRAP), (False, True)), ids=_told)
def sandbox(request: pytest.FixtureRequest, outside: Outside) -> Iterator[ForkedSandbox]:
    """A sandbox, of root if root runs the tests or of an ordinary user; the process that starts it has the secret in its
    environment and in an open file."""
    os.environ["OF_THE_PARENT"] = "s3cret"
    try:
        forked = ForkedSandbox(*request.param)
    except RecipeError as error:
        pytest.skip(error.problem)
    finally:
        del os.environ["OF_THE_PARENT"]
    yield forked
    forked.close()


@pytest.fixture(scope="module")
def unconfined() -> Iterator[ForkedSandbox]:
    forked = ForkedSandbox(Choice.NONE)
    yield forked
    forked.close()


@pytest.mark.parametrize("escape", ESCAPES, ids=lambda escape: escape.name)
def test_an_escape_is_contained(escape: Escape, sandbox: ForkedSandbox, outside: Outside, tmp_path: Path) -> None:
    others = (sandbox.pid, outside.victim.pid)
    before = [scheduling(each) for each in others]
    finished = sandbox.run(outside.seen_from_inside(sandbox.pid) + HELPERS + escape.code, tmp_path, escape.limits)
    told = f"{finished.reason} {finished.exit_code}\n{finished.stdout.decode()[-2000:]}\n{finished.stderr.decode()[-2000:]}"
    assert escape.contained(finished), told
    assert outside.harm() == [], told
    assert [scheduling(each) for each in others] == before, told
    assert left_in(tmp_path) == [], told


@pytest.mark.parametrize("escape", [each for each in ESCAPES if each.only_uses_more], ids=lambda escape: escape.name)
def test_limits_hold_where_nothing_is_confined(
    escape: Escape, unconfined: ForkedSandbox, outside: Outside, tmp_path: Path
) -> None:
    finished = unconfined.run(outside.seen_from_inside(unconfined.pid) + HELPERS + escape.code, tmp_path, escape.limits)
    assert escape.contained(finished), finished
    assert left_in(tmp_path) == []


def test_the_attempts_succeed_without_a_sandbox(outside: Outside, unconfined: ForkedSandbox, tmp_path: Path) -> None:
    """The programs do what they claim to do: some of the harmless ones achieve something where nothing is confined."""
    tried = (
        "reading files outside",
        "processes of others",
        "sockets in files and in memory",
        "symbolic links",
        "every kind of socket",
    )
    for name in tried:
        escape = next(each for each in ESCAPES if each.name == name)
        code = escape.code.replace('write("link")', 'read("link")').replace('write("folder/new")', 'read("link")')
        code = code.replace("os.chmod", "os.stat and os.access").replace("write(", "os.access and read(")
        code = code.replace('socket.socket(socket.AF_UNIX).bind(OUTSIDE + "/mine")', "0")
        finished = unconfined.run(outside.seen_from_inside(unconfined.pid) + HELPERS + code, tmp_path, escape.limits)
        assert b"ESCAPED" in finished.stdout, f"{name}: {finished}"


Kind = tuple[int, int, int]
"""Family, type and protocol of a socket."""
KINDS = """
import ctypes, itertools, json, os
libc = ctypes.CDLL(None)
made, pairs = [], []
for kind in itertools.product(range(64), (1, 2, 3, 4, 5, 6, 10), range(300)):
    if (descriptor := libc.socket(*kind)) >= 0:
        os.close(descriptor)
        made.append(kind)
    if libc.socketpair(*kind, pair := (ctypes.c_int * 2)()) == 0:
        os.close(pair[0])
        os.close(pair[1])
        pairs.append(kind)
print(json.dumps([made, pairs]))
"""
LOCAL, NETWORK = (socket.AF_UNIX,), (socket.AF_INET, socket.AF_INET6)


def kinds_of_sockets(sandbox: ForkedSandbox, folder: Path) -> tuple[set[Kind], set[Kind]]:
    """The kinds of sockets that a program can make, and those of which it can make a connected pair."""
    finished = sandbox.run(KINDS, folder, Limits(wall_s=60.0, cpu_s=60.0))
    made, pairs = msgspec.json.decode(finished.stdout, type=tuple[set[Kind], set[Kind]])
    return made, pairs


def test_of_all_kinds_of_sockets_only_harmless_ones_can_be_made(
    sandbox: ForkedSandbox, unconfined: ForkedSandbox, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    known, known_pairs = kinds_of_sockets(unconfined, tmp_path)
    assert {(2, 1, 0), (2, 2, 17), (1, 1, 0)} < known
    made, pairs = kinds_of_sockets(sandbox, tmp_path)
    assert pairs == {kind for kind in known_pairs if kind[0] in LOCAL}
    if request.node.callspec.params["sandbox"][0] is Choice.SANDLOCK:
        assert made == {kind for kind in known if kind[0] in LOCAL}
    else:  # it has a network of its own
        allowed = {
            kind for kind in known if kind[0] in LOCAL + NETWORK and kind[2] in (0, socket.IPPROTO_TCP, socket.IPPROTO_UDP)
        }
        assert made == allowed


def left_in(folder: Path) -> list[str]:
    """The processes whose current folder is ``folder``."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if os.readlink(process / "cwd") == str(folder):
                found.append((process / "cmdline").read_text())
        except OSError:  # it has ended
            continue
    return found
