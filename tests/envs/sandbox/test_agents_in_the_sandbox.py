"""What a program in the sandbox of agents reaches: its model, its folder, and what it was given to read."""

import asyncio
import ctypes
import itertools
import json
import os
import socket
import subprocess
import sys
import threading
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from ordinary_user import apart

from asyncrl.core.errors import RecipeError
from asyncrl.envs.sandbox.limits import Limits
from asyncrl.envs.sandbox.messages import AgentsPart, BackendName, Choice, Finished, Reason
from asyncrl.envs.sandbox.privileges import drop_capabilities
from asyncrl.envs.sandbox.sandbox import Sandbox, Use

PYTHON = os.path.realpath(sys.executable)
LIMITS = Limits(wall_s=60.0, cpu_s=60.0, memory_mb=256, processes=64, folder_mb=8, file_mb=8)
OUTSIDE_ADDRESS = "192.0.2.1"
"""An address that is no loopback, in a network that the test makes: nobody has it (RFC 5737)."""
_NEW_NETWORK = 0x40000000
BACKENDS = tuple(itertools.product((Choice.BUBBLEWRAP, Choice.SANDLOCK), (False, True)))

REACHES = """
import json, os, socket, subprocess, sys, threading
PORT, OTHER, OUTSIDE, ADDRESS, VICTIM = json.loads(os.environ["WHERE"])
FAST_OPEN = 0x20000000

def connected(address, port, family=socket.AF_INET):
    client = socket.socket(family)
    client.settimeout(5)
    client.connect((address, port))
    return client.recv(99).decode()

def opened_fast(address, port):
    client = socket.socket()
    client.sendto(b"", FAST_OPEN, (address, port))
    return client.recv(99).decode()

def sent(address, port):
    socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", (address, port))

def in_file(address):
    client = socket.socket(socket.AF_UNIX)
    client.settimeout(5)
    client.connect(address)
    return client.recv(99).decode()

def written(path):
    open(path, "w").write("mine")
    return open(path).read()

def ran():
    return subprocess.run(["sh", "-c", "echo child"], capture_output=True, text=True).stdout.strip()

def paired():
    here, there = socket.socketpair()
    here.sendall(b"pair")
    return there.recv(9).decode()

attempts = {
    "the model": lambda: connected("127.0.0.1", PORT),
    "many at once": lambda: "".join(sorted({connected("127.0.0.1", PORT) for _ in range(20)})),
    "another port": lambda: connected("127.0.0.1", OTHER),
    "any address": lambda: connected("0.0.0.0", OTHER),
    "another loopback address": lambda: connected("127.0.0.2", PORT),
    "a listener outside": lambda: connected(ADDRESS, PORT),
    "a listener outside, fast": lambda: opened_fast(ADDRESS, PORT),
    "another port, fast": lambda: opened_fast("127.0.0.1", OTHER),
    "another port by IPv6": lambda: connected("::ffff:127.0.0.1", OTHER, socket.AF_INET6),
    "datagrams": lambda: sent("127.0.0.1", OTHER),
    "a socket in a file": lambda: in_file(OUTSIDE + "/socket"),
    "a socket in memory": lambda: in_file("\\0" + OUTSIDE),
    "a raw socket": lambda: str(socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)),
    "its folder": lambda: written("new"),
    "its temporary folder": lambda: written(os.environ["TMPDIR"] + "/new"),
    "a program": ran,
    "a pair of sockets": paired,
    "what it was given": lambda: open(os.environ["GIVEN"]).read(),
    "a secret": lambda: open(OUTSIDE + "/secret").read(),
    "a file outside": lambda: written(OUTSIDE + "/new"),
    "a file given": lambda: written(os.environ["GIVEN"]),
    "a mode outside": lambda: os.chmod(OUTSIDE + "/secret", 0o644),
    "a setting of the kernel": lambda: os.close(os.open("/proc/sys/kernel/core_pattern", os.O_WRONLY)) or "opened",
    "memory of the first process": lambda: os.close(os.open("/proc/1/mem", os.O_RDWR)) or "opened",
    "another process": lambda: os.kill(VICTIM, 9),
    "the parent's variables": lambda: os.environ["OF_THE_PARENT"],
}

def outcome(attempt):
    try:
        return attempt()
    except (OSError, KeyError) as error:
        return None

json.dump({what: outcome(attempt) for what, attempt in attempts.items()}, open("reached", "w"))
"""
ALLOWED = {
    "the model": "model",
    "many at once": "model",
    "its folder": "mine",
    "its temporary folder": "mine",
    "a program": "child",
    "a pair of sockets": "pair",
    "what it was given": "given",
}


USE = Use((BackendName.BUBBLEWRAP, BackendName.SANDLOCK), "environment.sandbox.backend", "do without")


class Listeners:
    """Servers that say who they are, and count who comes."""

    def __init__(self) -> None:
        self.heard: list[str] = []
        self._kept = ExitStack()

    def serve(self, family: int, address: Any, word: str) -> Any:
        server = self._kept.enter_context(socket.socket(family))
        server.bind(address)
        server.listen(100)

        def answer() -> None:
            while True:
                client, _ = server.accept()
                self.heard.append(word)
                client.sendall(word.encode())
                client.close()

        threading.Thread(target=answer, daemon=True).start()
        return server.getsockname()


def in_a_network_of_its_own() -> str | None:
    """Leave this host's network for a new one with an outside address; says why that is not possible."""
    if ctypes.CDLL(None, use_errno=True).unshare(_NEW_NETWORK) != 0:
        return f"there can be no new network here: {os.strerror(ctypes.get_errno())}"
    for command in ("ip link set lo up", f"ip addr add {OUTSIDE_ADDRESS}/32 dev lo"):
        done = subprocess.run(command.split(), capture_output=True, text=True, check=False)
        if done.returncode != 0:
            return f"{command}: {done.stderr}"
    return None


def played(
    choice: Choice, ordinary_user: bool, outside: Path, folder: Path, victim: int
) -> tuple[str | None, Finished | None, list[str]]:
    """Run the program in a network that the test makes; returns why not, how it ended, and which servers were reached."""
    if (why := in_a_network_of_its_own()) is not None:
        return why, None, []
    listeners = Listeners()
    _, port = listeners.serve(socket.AF_INET, ("127.0.0.1", 0), "model")
    _, other = listeners.serve(socket.AF_INET, ("127.0.0.1", 0), "other port")
    listeners.serve(socket.AF_INET, ("127.0.0.2", port), "other loopback address")
    listeners.serve(socket.AF_INET, (OUTSIDE_ADDRESS, port), "outside")
    listeners.serve(socket.AF_UNIX, str(outside / "socket"), "file")
    listeners.serve(socket.AF_UNIX, f"\0{outside}", "memory")
    way = folder.parent / "way"
    listeners.serve(socket.AF_UNIX, str(way), "model")
    datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    datagrams.bind(("127.0.0.1", other))
    datagrams.setblocking(False)
    if ordinary_user:
        drop_capabilities()
    os.environ["OF_THE_PARENT"] = "s3cret"
    room = folder / "work"
    room.mkdir()
    given = folder.parent / "given"
    where = json.dumps([port, other, str(outside), OUTSIDE_ADDRESS, victim])
    variables = {"PATH": "/usr/bin:/bin", "TMPDIR": str(room), "WHERE": where, "GIVEN": str(given)}
    agent = AgentsPart(port, str(way), str(room), variables)
    readable = [Path(sys.base_prefix), given]

    async def run() -> Finished:
        async with Sandbox(choice, USE) as sandbox:
            stopped: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            return await sandbox.play([PYTHON, "-I", "-S", "-c", REACHES], folder, LIMITS, readable, agent, stopped)

    try:
        finished = asyncio.run(run())
    except RecipeError as error:
        return error.problem, None, []
    with suppress(BlockingIOError):
        listeners.heard.append(f"a datagram: {datagrams.recv(9)!r}")
    return None, finished, listeners.heard


@pytest.mark.parametrize(("choice", "ordinary_user"), BACKENDS)
def test_an_agent_reaches_its_model_and_its_folder_and_nothing_else(choice: Choice, ordinary_user: bool, tmp_path: Path) -> None:
    outside, folder = tmp_path / "outside", tmp_path / "episode"
    outside.mkdir()
    folder.mkdir()
    (outside / "secret").write_text("s3cret")
    (outside / "secret").chmod(0o600)
    (tmp_path / "given").write_text("given")
    with subprocess.Popen(["sleep", "1000"], start_new_session=True, preexec_fn=drop_capabilities) as victim:
        try:
            why, finished, heard = apart(played, choice, ordinary_user, outside, folder, victim.pid)
            if why is not None:
                pytest.skip(why)
            assert (finished.reason, finished.exit_code) == (Reason.EXITED, 0), finished
            reached = json.loads((folder / "work" / "reached").read_bytes())
            assert {what: found for what, found in reached.items() if found is not None} == ALLOWED
            assert set(heard) == {"model"}
            assert victim.poll() is None
        finally:
            victim.kill()
    assert (outside / "secret").read_text() == "s3cret"
    assert (outside / "secret").stat().st_mode & 0o777 == 0o600
    assert sorted(each.name for each in outside.iterdir()) == ["secret", "socket"]
    assert (tmp_path / "given").read_text() == "given"


def test_the_attempts_succeed_without_a_sandbox(tmp_path: Path) -> None:
    """The program does what it claims to do: it reaches all of it where nothing is confined."""
    outside, folder = tmp_path / "outside", tmp_path / "episode"
    outside.mkdir()
    folder.mkdir()
    (outside / "secret").write_text("s3cret")
    (tmp_path / "given").write_text("given")
    with subprocess.Popen(["sleep", "1000"], start_new_session=True, preexec_fn=drop_capabilities) as victim:
        why, finished, heard = apart(played, Choice.NONE, False, outside, folder, victim.pid)
        if why is not None:
            victim.kill()
    if why is not None:
        pytest.skip(why)
    assert finished.exit_code == 0, finished
    reached = json.loads((folder / "work" / "reached").read_bytes())
    of_a_host = {"a setting of the kernel", "memory of the first process"}  # a container may not have them
    assert {what for what, found in reached.items() if found is None} - of_a_host == {
        *("a mode outside", "another process", "datagrams"),  # they return nothing
        *("a raw socket", "the parent's variables"),  # no backend gives these
    }
    assert victim.returncode == -9
    assert (outside / "secret").stat().st_mode & 0o777 == 0o644
    assert {"other port", "other loopback address", "outside", "file", "memory", "a datagram: b'x'"} < set(heard)
