"""Imported by a server that engines are forked from: they take weights as if they were on GPUs.

Gloo stands for NCCL, there is no load plan, and there is room beside the weights in use from the second time on.
"""

import os
from functools import partial

from gloo_collective import Gloo

from generators.engine_process import ENGINE_VARIABLES

os.environ.update(ENGINE_VARIABLES)
import generators.engine_imports  # noqa: F401 - the variables come before anything of vLLM's
from asyncrl.weights import vllm_engine

asked = []


def has_room(size, device):
    asked.append(size)
    return len(asked) > 1


vllm_engine.BroadcastReceiver = partial(vllm_engine.BroadcastReceiver, collective=Gloo(), has_room=has_room)
vllm_engine.LoadPlan.of = classmethod(lambda *arguments: None)
