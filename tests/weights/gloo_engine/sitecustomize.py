"""Python runs this first in each process that has this folder in PYTHONPATH: an engine then takes weights as if it were on GPUs.

Gloo stands for NCCL, there is no load plan, and there is room beside the weights in use from the second time on.
"""

import sys
from functools import partial
from importlib.abc import MetaPathFinder
from importlib.util import find_spec

PATCHED = "asyncrl.weights.vllm_engine"


class Patching(MetaPathFinder):
    """Changes the module when it is imported; nothing is imported before."""

    def find_spec(self, fullname, path, target=None):
        if fullname != PATCHED:
            return None
        sys.meta_path.remove(self)
        spec = find_spec(fullname)
        original = spec.loader.exec_module

        def exec_module(module):
            original(module)
            patch(module)

        spec.loader.exec_module = exec_module
        return spec


def patch(module):
    from gloo_collective import Gloo

    asked = []

    def has_room(size, device):
        asked.append(size)
        return len(asked) > 1

    module.BroadcastReceiver = partial(module.BroadcastReceiver, collective=Gloo(), has_room=has_room)
    module.LoadPlan.of = classmethod(lambda *arguments: None)


sys.meta_path.insert(0, Patching())
