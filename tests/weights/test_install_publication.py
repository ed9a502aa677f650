"""What vLLM's engine process does with a publication, step by step."""

from concurrent.futures import Future
from queue import SimpleQueue

import pytest
from vllm.v1.engine import EngineCoreRequestType
from vllm.v1.executor.multiproc_executor import MultiprocExecutor
from vllm.v1.executor.uniproc_executor import UniProcExecutor

from asyncrl.weights.vllm_engine import install_publication, prepare_publication


class Core:
    """An engine process that logs; with ``busy`` it pauses once :attr:`paused` is done, as after a request that just ended."""

    def __init__(self, *, busy, fails=False):
        self.paused, self.fails = (Future() if busy else None), fails
        self.input_queue, self.log = SimpleQueue(), []
        self.model_executor = object.__new__(UniProcExecutor)

    def pause_scheduler(self, mode, clear_cache):
        self.log.append(f"pause, {mode}, {clear_cache}")
        return self.paused

    def collective_rpc(self, method, args):
        self.log.append(f"{method} {args}")
        if self.fails:
            raise RuntimeError("it lacks a tensor")
        return [7, 7]

    def set_weight_version(self, version):
        self.log.append(f"version {version}")

    def resume_scheduler(self):
        self.log.append("resume")


@pytest.mark.parametrize("busy", [False, True])
def test_the_engine_is_paused_loads_and_looks_for_work_again(busy):
    core = Core(busy=busy)
    done = install_publication(core, b"p", "3")
    if busy:
        assert core.log == ["pause, keep, False"]
        assert core.input_queue.empty()
        core.paused.set_result(None)
    seconds, *fingerprints = done.result(timeout=0)
    assert core.log == ["pause, keep, False", "load_publication (b'p',)", "version 3", "resume"]
    assert fingerprints == [7, 7]
    assert seconds >= 0
    # A pause that had to wait ends where vLLM's loop is about to wait for a message, whatever work there is.
    assert core.input_queue.get_nowait() == (EngineCoreRequestType.WAKEUP, None)


@pytest.mark.parametrize("busy", [False, True])
def test_an_engine_that_cannot_load_stays_paused_under_its_old_version(busy):
    core = Core(busy=busy, fails=True)
    done = install_publication(core, b"p", "3")
    if busy:
        core.paused.set_result(None)
    with pytest.raises(RuntimeError, match="it lacks a tensor"):
        done.result(timeout=0)
    assert core.log == ["pause, keep, False", "load_publication (b'p',)"]


def test_weights_are_made_ready_without_a_pause():
    core = Core(busy=True)
    assert prepare_publication(core, b"p").result(timeout=60) is None
    assert core.log == ["prepare_publication (b'p',)"]


def test_what_went_wrong_while_weights_were_made_ready_is_told():
    with pytest.raises(RuntimeError, match="it lacks a tensor"):
        prepare_publication(Core(busy=True, fails=True), b"p").result(timeout=60)


def test_workers_in_processes_of_their_own_are_left_to_the_engine_s_loop():
    core = Core(busy=True)
    core.model_executor = object.__new__(MultiprocExecutor)
    assert prepare_publication(core, b"p").result(timeout=0) is None
    assert core.log == []
