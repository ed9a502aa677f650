"""Queues of vLLM's processes are removed once the engine that made them was killed, and not before."""

import os
import signal
import time
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
from vllm.distributed.device_communicators import shm_broadcast
from vllm_process import vllm_process

from asyncrl.core.files.memory_files import memory_file_system
from asyncrl.core.files.owned_memory import BEGINNING, OwnedMemory, remove_abandoned_memory
from asyncrl.generators.vllm import engine_load


def make_queue(sender: Connection) -> None:
    """In a process of vLLM: make a queue whose readers are still starting, and send its name."""
    engine_load.register()
    queue = shm_broadcast.MessageQueue(1, 1)
    sender.send(queue.buffer.shared_memory.name)
    signal.pause()


def make_old(path: Path) -> None:
    an_hour_ago = time.time() - 3600
    os.utime(path, (an_hour_ago, an_hour_ago))


def test_a_queue_of_a_killed_engine_is_removed_by_the_next_launch() -> None:
    with vllm_process(make_queue) as (_, receiver):
        queue = memory_file_system() / receiver.recv()
        make_old(queue)
        assert queue.name not in remove_abandoned_memory(), "its engine lives"
    assert queue.exists(), "nobody else removes it"
    os.utime(queue)
    assert queue.name not in remove_abandoned_memory(), "it is so young that its maker may not have locked it yet"
    make_old(queue)
    assert queue.name in remove_abandoned_memory()
    assert not queue.exists()


def test_readers_find_a_queue_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shm_broadcast, "shared_memory", shm_broadcast.shared_memory)
    engine_load.register()
    made = shm_broadcast.ShmRingBuffer(1, 1024, 2)
    assert isinstance(made.shared_memory, OwnedMemory)
    read = shm_broadcast.ShmRingBuffer(*made.handle())
    with made.get_data(0) as ours, read.get_data(0) as theirs:
        ours[0] = 7
        assert theirs[0] == 7
    path = memory_file_system() / made.shared_memory.name
    del read
    assert path.exists()
    del made
    assert not path.exists()


def test_a_name_that_is_a_link_is_left_alone(tmp_path: Path) -> None:
    target, link = tmp_path / "of somebody", memory_file_system() / f"{BEGINNING}{tmp_path.name}"
    target.touch()
    make_old(target)
    link.symlink_to(target)
    try:
        assert link.name not in remove_abandoned_memory()
        assert target.exists()
    finally:
        link.unlink()
