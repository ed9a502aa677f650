"""Processes forked from servers that have imported what takes long, once, so that starting one takes milliseconds.

The servers are not multiprocessing's own, of which a process has one: that is the server of the engines that the process starts
(``asyncrl.generators.vllm.cpu.engine_process``), which has imported vLLM.
"""

import os
import sys
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path
from typing import ClassVar
from unittest import mock

_TESTS = Path(__file__).parent


def _server(imported: str) -> forkserver.ForkServer:
    server = forkserver.ForkServer()
    server.set_forkserver_preload([imported])
    return server


class _Forked(ForkServerProcess):
    server: ClassVar[forkserver.ForkServer]

    def start(self) -> None:
        # A server takes its module path from the environment only (CPython passes sys.path on and then ignores it). On a machine
        # with a GPU, its preload must ask for GPUs without starting CUDA, which no fork would survive.
        path = os.pathsep.join(filter(None, [*sys.path, *(str(_TESTS / each) for each in ("learners", "run", "weights"))]))
        with mock.patch.dict(os.environ, PYTHONPATH=path, PYTORCH_NVML_BASED_CUDA_CHECK="1"):
            self.server.ensure_running()
        with mock.patch.object(forkserver, "connect_to_new_process", self.server.connect_to_new_process):
            super().start()


class _WithMegatron(_Forked):
    server = _server("rank_preload")


class _WithMlflow(_Forked):
    server = _server("tracking_side")


class _GlooEngine(ForkServerProcess):
    """A process of an engine, forked from the server of engines, that imports ``gloo_engine`` before it does anything."""

    def run(self) -> None:
        import gloo_engine  # noqa: F401

        super().run()


class _WithTransformers(_Forked):
    server = _server("transformers.modeling_utils")


class _WithTorch(_Forked):
    server = _server("gloo_collective")


class _MegatronContext(ForkServerContext):
    Process = _WithMegatron


class _MlflowContext(ForkServerContext):
    Process = _WithMlflow


class _GlooEngineContext(ForkServerContext):
    Process = _GlooEngine


class _TransformersContext(ForkServerContext):
    Process = _WithTransformers


class _TorchContext(ForkServerContext):
    Process = _WithTorch


WITH_MEGATRON, WITH_MLFLOW, WITH_GLOO_ENGINE = _MegatronContext(), _MlflowContext(), _GlooEngineContext()
WITH_TRANSFORMERS, WITH_TORCH = _TransformersContext(), _TorchContext()
"""Contexts of multiprocessing."""
