"""A rank's server goes on when the machine has no file or no thread left for a connection."""

import errno
import os
import socket
import threading
from contextlib import closing

import pytest

from asyncrl.weights.nccl import accepting_socket
from asyncrl.weights.nccl.accepting_socket import AcceptingSocket, WaitingClients

HOST = "127.0.0.1"
MINUTE = 60.0


def test_a_server_that_had_too_many_files_open_accepts_connections_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(accepting_socket, "AGAIN_S", 0.01)
    accept, failures = socket.socket.accept, [OSError(errno.EMFILE, os.strerror(errno.EMFILE))] * 5

    def accept_later(listening: socket.socket) -> tuple[socket.socket, object]:
        if failures:
            raise failures.pop()
        return accept(listening)

    monkeypatch.setattr(socket.socket, "accept", accept_later)
    with closing(AcceptingSocket(HOST, "a rank")) as listening, socket.create_connection(listening.address, MINUTE) as client:
        accepted = listening.accept()
        assert accepted is not None
        with accepted[0] as connection:
            assert connection.getpeername() == client.getsockname()
    told = [line for line in caplog.messages if "could not accept a connection: [Errno 24] Too many open files" in line]
    assert len(told) == 1, "at most one line a minute"


def test_a_client_for_whom_the_machine_has_no_thread_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    ours, theirs = socket.socketpair()
    with theirs:
        assert not WaitingClients().enter(threading.Thread(), ours)
        assert theirs.recv(1) == b""
