"""What vLLM's engine process does with a publication, step by step."""

import os
from concurrent.futures import Future
from queue import SimpleQueue

import pytest
from vllm.v1.engine import EngineCoreRequestType

from asyncrl.core.errors import ComponentFailed
from asyncrl.weights.vllm.publication_calls import load_publication, prepare_publication
from asyncrl.weights.vllm.worker_answers import Answer


class Core:
    """An engine process that logs; with ``busy`` it pauses once :attr:`paused` is done, as after a request that just ended."""

    def __init__(self, *, busy, fails=False):
        self.paused, self.fails = (Future() if busy else None), fails
        self.input_queue, self.log = SimpleQueue(), []

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
    done = load_publication(core, b"p", "3", 0)
    if busy:
        assert core.log == ["pause, keep, False"]
        assert core.input_queue.empty()
        core.paused.set_result(None)
    seconds, *fingerprints = done.result(timeout=0)
    assert core.log == ["pause, keep, False", "load_publication (b'p', 0)", "version 3", "resume"]
    assert fingerprints == [7, 7]
    assert seconds >= 0
    # A pause that had to wait ends where vLLM's loop is about to wait for a message, whatever work there is.
    assert core.input_queue.get_nowait() == (EngineCoreRequestType.WAKEUP, None)


@pytest.mark.parametrize("busy", [False, True])
def test_an_engine_that_cannot_load_stays_paused_under_its_old_version(busy):
    core = Core(busy=busy, fails=True)
    done = load_publication(core, b"p", "3", 0)
    if busy:
        core.paused.set_result(None)
    with pytest.raises(RuntimeError, match="it lacks a tensor"):
        done.result(timeout=0)
    assert core.log == ["pause, keep, False", "load_publication (b'p', 0)"]


class Workers:
    """An engine process with two workers, which give their answers when they are told to."""

    def __init__(self):
        self.made = []

    def collective_rpc(self, method, args):
        assert (method, args[0]) == ("begin_preparing", b"p")
        self.made = [Answer(args[1]), Answer(args[1])]
        return [True, True]


def test_weights_are_ready_when_every_worker_has_made_them_ready():
    workers = Workers()
    done = prepare_publication(workers, b"p")
    one, other = workers.made
    one.give()
    assert not done.done()
    other.give()
    assert done.result(timeout=60) is None


class WorkersOnTwoNodes(Workers):
    """One of the two is on another node, where it cannot answer."""

    def collective_rpc(self, method, args):
        self.made = [Answer(args[1])]
        return [True, False]


def test_workers_on_other_nodes_are_not_waited_for():
    workers = WorkersOnTwoNodes()
    done = prepare_publication(workers, b"p")
    workers.made[0].give()
    assert done.result(timeout=60) is None


def test_what_went_wrong_in_one_worker_is_told():
    workers = Workers()
    done = prepare_publication(workers, b"p")
    workers.made[1].give("it lacks a tensor\n" * 1000)
    workers.made[0].give()
    with pytest.raises(ComponentFailed, match=r"^it lacks a tensor"):
        done.result(timeout=60)


def test_a_worker_that_dies_before_its_weights_are_ready_is_noticed():
    workers = Workers()
    done = prepare_publication(workers, b"p")
    workers.made[0].give()
    os.close(workers.made[1]._writing)  # as the kernel does
    with pytest.raises(ComponentFailed, match="1 of the engine's 2 workers ended before they answered"):
        done.result(timeout=60)


def test_a_worker_that_cannot_begin_is_told_at_once():
    with pytest.raises(RuntimeError, match="it lacks a tensor"):
        prepare_publication(Core(busy=True, fails=True), b"p")
