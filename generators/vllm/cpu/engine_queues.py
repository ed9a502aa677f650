"""The queues in shared memory through which the processes of an engine on a CPU speak.

vLLM removes a queue when the process that made it ends by itself; one that is killed would leave it, with up to hundreds of MB.
What always holds: a queue has no name any more once all its readers have mapped it, so that the kernel frees it with the last of
their processes, however they end.
"""

from vllm.distributed.device_communicators.shm_broadcast import MessageQueue
from vllm.v1.executor.multiproc_executor import MultiprocExecutor

_wait_until_ready = MessageQueue.wait_until_ready


class NamelessQueuesExecutor(MultiprocExecutor):
    """vLLM's executor with a process for each worker, in the engine's own process."""

    def _init_executor(self) -> None:
        remove_names()
        super()._init_executor()


def remove_names() -> None:
    """Have every queue that this process makes lose its name when it is ready. vLLM has no setting for it."""
    MessageQueue.wait_until_ready = _wait_and_remove_name


def _wait_and_remove_name(queue: MessageQueue) -> None:
    _wait_until_ready(queue)
    buffer = getattr(queue, "buffer", None)  # there is none if all its readers are on other nodes
    if buffer is not None and buffer.is_creator:
        buffer.shared_memory.unlink()
        buffer.is_creator = False  # or its end would remove the name once more
