"""Gives the queues of vLLM's processes names that say whose they are.

vLLM removes a queue when the process that made it ends by itself. One that is killed leaves it, with up to hundreds of MB, under
a name that could be any program's. With ours, the next launch removes it (:mod:`asyncrl.core.files.owned_memory`).
"""

from types import SimpleNamespace

from vllm.distributed.device_communicators import shm_broadcast

from asyncrl.core.files.owned_memory import OwnedMemory


def own_queues() -> None:
    """Have every queue that this process makes be owned by it. vLLM has no setting for it, so a class is replaced."""
    shm_broadcast.shared_memory = SimpleNamespace(SharedMemory=OwnedMemory)
