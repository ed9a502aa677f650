"""Imported by a server that engines are forked from: they take weights as if they were on GPUs.

Gloo stands for NCCL, there is no load plan, and there is room beside the weights in use from the second time on.
"""

import os
from functools import partial

from gloo_collective import Gloo

from generators.vllm.cpu.engine_process import ENGINE_VARIABLES

os.environ.update(ENGINE_VARIABLES)
import generators.vllm.cpu.engine_imports  # noqa: F401 - the variables come before anything of vLLM's
from asyncrl.weights.vllm import engine_weights

asked = []


def has_room(size, device):
    asked.append(size)
    return len(asked) > 1


engine_weights.BroadcastReceiver = partial(engine_weights.BroadcastReceiver, collective=Gloo(), has_room=has_room)
engine_weights.LoadPlan.of = classmethod(lambda *arguments: None)
