"""Every program of ``escapes.py`` is contained by every backend that works on this machine."""

import asyncio
import contextlib
import os
import platform
import select
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from escapes import ESCAPES, HELPERS, Escape

from asyncrl.core.errors import RecipeError
from asyncrl.envs.sandbox.limits import Limits
from asyncrl.envs.sandbox.messages import Choice, Finished
from asyncrl.envs.sandbox.sandbox import Sandbox

PYTHON = os.path.realpath(sys.executable)
_NUMBERS = {
    # name: x86_64, aarch64
    "MEMFD_CREATE": (319, 279),
    "SHMGET": (29, 194),
    "PRLIMIT": (302, 261),
    "PTRACE": (101, 117),
    "PROCESS_VM_READV": (310, 270),
    "CLONE": (56, 220),
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

    def seen_from_inside(self) -> str:
        """Definitions for the programs."""
        column = ("x86_64", "aarch64").index(platform.machine())
        values = {name: numbers[column] for name, numbers in _NUMBERS.items()}
        values |= {"OUTSIDE": str(self.folder), "VICTIM": self.victim.pid, "PARENT": os.getpid(), "PORT": self.port}
        calls = [(name, numbers[column], arguments) for name, *numbers, arguments in _SYSTEM_CALLS]
        return "".join(f"{name} = {value!r}\n" for name, value in (values | {"SYSTEM_CALLS": calls}).items())


@pytest.fixture(scope="module")
def outside(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Outside]:
    folder = tmp_path_factory.mktemp("outside")
    secret = folder / "secret"
    secret.write_text("s3cret")
    secret.chmod(0o600)
    victim = subprocess.Popen(["sleep", "1000"], start_new_session=True)
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


@pytest.fixture(scope="module", params=[Choice.SANDLOCK, Choice.BUBBLEWRAP])
def sandbox(request: pytest.FixtureRequest, outside: Outside) -> Iterator["Loop"]:
    """A sandbox that is started while this process has the secret in its environment and in an open file."""
    os.environ["OF_THE_PARENT"] = "s3cret"
    loop = Loop(request.param)
    try:
        loop.enter()
    except RecipeError as error:
        loop.close()
        del os.environ["OF_THE_PARENT"]
        pytest.skip(error.problem)
    yield loop
    loop.leave()
    del os.environ["OF_THE_PARENT"]


class Loop:
    """A sandbox with an event loop of its own, for tests that are not async."""

    def __init__(self, choice: Choice) -> None:
        self._runner = asyncio.Runner()
        self._runner.get_loop()
        self._choice = choice
        self.sandbox: Sandbox

    def enter(self) -> None:
        async def start() -> Sandbox:
            return await Sandbox(self._choice).__aenter__()

        self.sandbox = self._runner.run(start())

    def run(self, code: str, folder: Path, limits: Limits) -> Finished:
        command = [PYTHON, "-I", "-S", "-"]
        return self._runner.run(self.sandbox.run(command, folder, limits, stdin=code.encode(), readable=[Path(sys.base_prefix)]))

    def leave(self) -> None:
        self._runner.run(self.sandbox.__aexit__(None, None, None))
        self.close()

    def close(self) -> None:
        self._runner.close()


@pytest.mark.parametrize("escape", ESCAPES, ids=lambda escape: escape.name)
def test_an_escape_is_contained(escape: Escape, sandbox: Loop, outside: Outside, tmp_path: Path) -> None:
    finished = sandbox.run(outside.seen_from_inside() + HELPERS + escape.code, tmp_path, escape.limits)
    told = f"{finished.reason} {finished.exit_code}\n{finished.stdout.decode()[-2000:]}\n{finished.stderr.decode()[-2000:]}"
    assert escape.contained(finished), told
    assert outside.harm() == [], told
    assert left_in(tmp_path) == [], told


def test_the_attempts_succeed_without_a_sandbox(outside: Outside, tmp_path: Path) -> None:
    """The programs do what they claim to do: some of the harmless ones achieve something where nothing is confined."""
    loop = Loop(Choice.NONE)
    loop.enter()
    try:
        for name in ("reading files outside", "processes of others", "sockets in files and in memory", "symbolic links"):
            escape = next(each for each in ESCAPES if each.name == name)
            code = escape.code.replace('write("link")', 'read("link")').replace('write("folder/new")', 'read("link")')
            code = code.replace("os.chmod", "os.stat and os.access").replace("write(", "os.access and read(")
            code = code.replace('socket.socket(socket.AF_UNIX).bind(OUTSIDE + "/mine")', "0")
            finished = loop.run(outside.seen_from_inside() + HELPERS + code, tmp_path, escape.limits)
            assert b"ESCAPED" in finished.stdout, f"{name}: {finished}"
    finally:
        loop.leave()


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
