"""A process of vLLM makes no semaphore of which the name would stay if the process were killed."""

from multiprocessing.connection import Connection
from pathlib import Path

from vllm_process import vllm_process

from asyncrl.generators.vllm import engine_load


def load_weights(sender: Connection) -> None:
    """In a process of vLLM: load weights, and send how many semaphores the process has."""
    from vllm.model_executor.model_loader import weight_utils

    engine_load.register()
    list(weight_utils.safetensors_weights_iterator([], use_tqdm_on_load=True))
    sender.send(Path("/proc/self/maps").read_text().count("/sem."))


def test_loading_weights_makes_no_semaphore() -> None:
    with vllm_process(load_weights) as (_, receiver):
        assert receiver.recv() == 0
