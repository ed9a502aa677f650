"""Importing this imports what an engine's process needs on a CPU. Meant for the server that such processes are forked from."""

import importlib

from generators.vllm.cpu.engine_process import IMPORTED
from generators.vllm.without_sklearn import without_sklearn

with without_sklearn():
    for name in IMPORTED:
        importlib.import_module(name)
