"""Reports what vLLM's engine process has to do, and gives that process all methods that generators call there.

vLLM calls :func:`register` in each of its processes (entry point ``vllm.general_plugins``).
"""

import time
from contextlib import suppress
from typing import TYPE_CHECKING

import psutil

from asyncrl.generators.vllm.engine_locks import own_progress_locks
from asyncrl.generators.vllm.engine_steps import EngineSteps
from asyncrl.generators.vllm.held_outputs import HOLD_OUTPUTS, hold_outputs
from asyncrl.generators.vllm.text_stops import STOP_AT_TEXTS, stop_at_texts
from asyncrl.generators.vllm.turn_batches import ADD_TURNS, add_turns

if TYPE_CHECKING:
    from vllm.v1.engine.core import EngineCoreProc

REPORT_LOAD = "report_load"
"""The name under which vLLM's engine process has :func:`report_load` as a method."""


def register() -> None:
    """Add to vLLM's engine process the methods that generators call; own all processes' queues and locks. Safe to call again."""
    from vllm.v1.engine.core import EngineCoreProc

    from asyncrl.generators.vllm.owned_queues import own_queues  # imports of vLLM what the line before did

    own_queues()
    own_progress_locks()
    setattr(EngineCoreProc, REPORT_LOAD, report_load)
    setattr(EngineCoreProc, HOLD_OUTPUTS, hold_outputs)
    setattr(EngineCoreProc, ADD_TURNS, add_turns)
    setattr(EngineCoreProc, STOP_AT_TEXTS, stop_at_texts)


def report_load(core: "EngineCoreProc") -> tuple[int, int, float, float, float, float, list[float]]:
    """The fields of a :class:`asyncrl.generators.concurrency.EngineLoad`."""
    steps = EngineSteps.measuring(core)
    load = *core.scheduler.get_request_counts(), core.scheduler.kv_cache_manager.usage, _cpu_seconds(core)
    return *load, steps.prefill_seconds, steps.decode_seconds, steps.moments


def _cpu_seconds(core: "EngineCoreProc") -> float:
    """Processor time of the engine's process and of those of its workers that have one of their own."""
    seconds = time.process_time()
    for worker in getattr(core.model_executor, "workers", ()):
        with suppress(psutil.NoSuchProcess):
            times = psutil.Process(worker.proc.pid).cpu_times()
            seconds += times.user + times.system
    return seconds
