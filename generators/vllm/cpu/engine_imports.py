"""Importing this imports what an engine's process needs on a CPU. Meant for the server that such processes are forked from."""

import importlib

from asyncrl.core.process.long_import import long_import
from asyncrl.generators.vllm.cpu.engine_process import IMPORTED

with long_import():
    for name in IMPORTED:
        importlib.import_module(name)
