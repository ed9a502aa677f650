"""The two calls by which a publication reaches vLLM's engine process: one makes it ready, the other puts it into use.

What always holds: an engine of several data-parallel ranks goes on only when each rank has loaded the publication; where
one could not, all stay paused.
"""

import threading
import time
from concurrent.futures import Future
from typing import TYPE_CHECKING

import torch

from asyncrl.weights.vllm.worker_answers import Answers

if TYPE_CHECKING:
    from vllm.v1.engine.core import EngineCoreProc


def prepare_publication(core: "EngineCoreProc", publication: bytes) -> "Future[None]":
    """Make the weights of a publication ready beside those in use, in a thread of each worker, while requests go on.

    Workers on other nodes than this process may still be at it when it is done; :func:`load_publication` waits for them.

    Args:
        publication: a :class:`Publication`, encoded as MessagePack.
    """
    done: Future[None] = Future()
    answers = Answers()
    try:
        answering = core.collective_rpc("begin_preparing", args=(publication, answers.path))
    finally:
        answers.close()

    def wait() -> None:
        try:
            answers.wait(sum(answering))
        except BaseException as error:  # noqa: BLE001 - passed to whoever waits
            done.set_exception(error)
        else:
            done.set_result(None)

    threading.Thread(target=wait, name="waiting for a prepared publication", daemon=True).start()
    return done


def load_publication(core: "EngineCoreProc", publication: bytes, label: str, slot: int) -> "Future[list[float]]":
    """Load a publication between two steps of vLLM's engine process. From then on, vLLM reports ``label`` with its tokens.

    If the publication cannot be loaded, in this data-parallel rank or in another, the engine stays paused, because it is unknown
    which weights it would sample with.

    Args:
        publication: a :class:`Publication`, encoded as MessagePack; it need not have been prepared.
        label: tells which versions the engine has from then on.
        slot: where to put adapters; there is only one place for whole weights.

    Returns:
        The seconds for which the engine did not generate, then the fingerprint of what each worker loaded.
    """
    from vllm.v1.engine import EngineCoreRequestType

    done: Future[list[float]] = Future()
    began = time.monotonic()

    def load(paused: "Future[None] | None" = None) -> None:
        try:
            try:
                if paused is not None:
                    paused.result()
                fingerprints = core.collective_rpc("load_publication", args=(publication, slot))
            except BaseException:
                _all_loaded(core, False)
                raise
            if _all_loaded(core, True):
                core.set_weight_version(label)
                core.resume_scheduler()
                # The loop is about to wait for a message, and would not notice that there is work again.
                core.input_queue.put_nowait((EngineCoreRequestType.WAKEUP, None))
        except BaseException as error:  # noqa: BLE001 - passed to whoever waits
            done.set_exception(error)
        else:
            done.set_result([time.monotonic() - began, *fingerprints])

    paused = core.pause_scheduler(mode="keep", clear_cache=False)
    if paused is None:
        load()
    else:
        paused.add_done_callback(load)
    return done


def _all_loaded(core: "EngineCoreProc", loaded: bool) -> bool:
    """Wait until each data-parallel rank has loaded a publication or failed to, and return whether none failed."""
    ranks = getattr(core, "dp_group", None)  # there is none where an engine is one rank
    if ranks is None:
        return loaded
    failed = torch.tensor(not loaded, dtype=torch.int32)
    torch.distributed.all_reduce(failed, torch.distributed.ReduceOp.MAX, group=ranks)
    return not failed
