"""Processes that have imported vLLM, forked from the server that the engines of the tests are forked from."""

import multiprocessing
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess

from asyncrl.generators.vllm.cpu.engine_process import EngineProcessServer


@contextmanager
def vllm_process(function: Callable[[Connection], None]) -> Iterator[tuple[ForkServerProcess, Connection]]:
    """A process that runs ``function``, and what it sends; it is killed at the end."""
    EngineProcessServer.start()
    context = multiprocessing.get_context("forkserver")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=function, args=(sender,), daemon=True)
    process.start()
    sender.close()
    try:
        yield process, receiver
    finally:
        process.kill()
        process.join()
        receiver.close()
