"""A queue of vLLM's has no name any more once its reader has it, and still brings what is put into it."""

import threading

import pytest
from vllm.distributed.device_communicators.shm_broadcast import MessageQueue

from asyncrl.core.files.memory_files import memory_file_system
from asyncrl.generators.vllm.cpu.engine_queues import remove_names


def test_a_queue_that_is_ready_has_no_name_and_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MessageQueue, "wait_until_ready", MessageQueue.wait_until_ready)
    remove_names()
    queue = MessageQueue(1, 1)
    name = memory_file_system() / queue.buffer.shared_memory.name
    assert name.exists()
    reader = MessageQueue.create_from_handle(queue.export_handle(), 0)
    waiting = threading.Thread(target=reader.wait_until_ready)
    waiting.start()
    queue.wait_until_ready()
    waiting.join(60)
    assert not name.exists()
    queue.enqueue("a step")
    assert reader.dequeue(timeout=60) == "a step"
