"""Imported by each process of an engine, which then takes weights as if it were on a GPU.

Gloo stands for NCCL, there is no load plan, and there is room beside the weights in use from the second time on.
"""

from functools import partial

from fork_server import WITH_GLOO_ENGINE
from gloo_collective import Gloo
from vllm.v1.executor import multiproc_executor

from asyncrl.weights.vllm import engine_weights

asked = []


def has_room(size, device):
    asked.append(size)
    return len(asked) > 1


engine_weights.BroadcastReceiver = partial(engine_weights.BroadcastReceiver, collective=Gloo(), has_room=has_room)
engine_weights.LoadPlan.of = classmethod(lambda *_, **__: None)
multiproc_executor.get_mp_context = lambda: WITH_GLOO_ENGINE  # the engine's workers
