"""The port of an agent's own network leads to a socket in a file, and nowhere else."""

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from asyncrl.envs.sandbox import forwarder

DEADLINE_S = 60.0
LARGE = 3_000_000
CLIENT = f"""
import os, socket, sys
def ask(content):
    with socket.create_connection(("127.0.0.1", int(sys.argv[1])), timeout=30) as client:
        client.sendall(content)
        client.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: client.recv(65536), b""))
several = [socket.create_connection(("127.0.0.1", int(sys.argv[1]))) for _ in range(50)]
assert ask(b"hello") == b"HELLO"
assert ask(b"x" * {LARGE}) == b"X" * {LARGE}
print(os.getpid())
"""
LONELY = """
import socket, sys
client = socket.create_connection(("127.0.0.1", int(sys.argv[1])), timeout=30)
try:
    assert client.recv(9) == b""
except ConnectionError:
    pass
"""


@contextmanager
def shouting(file: Path) -> Iterator[None]:
    """A server that answers each connection with what it was sent, in capitals."""

    def answer(client: socket.socket) -> None:
        with client:
            content = b"".join(iter(lambda: client.recv(65536), b""))
            client.sendall(content.upper())

    def serve() -> None:
        while True:
            try:
                threading.Thread(target=answer, args=[server.accept()[0]], daemon=True).start()
            except OSError:  # it was closed
                return

    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(file))
        server.listen(100)
        threading.Thread(target=serve, daemon=True).start()
        yield


def forwarded(file: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Run a command beside the forwarder, which does not end by itself: its sandbox ends it."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
    arguments = [sys.executable, "-I", "-S", forwarder.__file__, str(file), port, *command]
    with subprocess.Popen(
        [*arguments, port], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        status = process.wait(DEADLINE_S)
        os.killpg(process.pid, signal.SIGKILL)
        output, errors = process.communicate()
    return subprocess.CompletedProcess(arguments, status, output, errors)


def test_what_is_sent_and_answered_passes_whole_and_the_command_keeps_its_process(tmp_path: Path) -> None:
    with shouting(tmp_path / "socket"):
        done = forwarded(tmp_path / "socket", sys.executable, "-c", CLIENT)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.strip().isdigit()


def test_a_connection_to_nobody_ends(tmp_path: Path) -> None:
    done = forwarded(tmp_path / "socket", sys.executable, "-c", LONELY)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(("command", "status"), [("exit 7", 7), ("kill -9 $$", -9)])
def test_the_exit_status_is_the_command_s(tmp_path: Path, command: str, status: int) -> None:
    assert forwarded(tmp_path / "socket", "/bin/sh", "-c", command).returncode == status


def test_a_command_that_there_is_not(tmp_path: Path) -> None:
    done = forwarded(tmp_path / "socket", "no-such-program")
    assert (done.returncode, done.stderr) == (
        forwarder.NOT_FOUND,
        "no-such-program cannot be started: No such file or directory\n",
    )


def test_a_command_has_no_children_that_it_did_not_start(tmp_path: Path) -> None:
    done = forwarded(
        tmp_path / "socket", sys.executable, "-c", "import os\ntry: os.wait()\nexcept ChildProcessError: print('none')"
    )
    assert (done.returncode, done.stdout) == (0, "none\n")
