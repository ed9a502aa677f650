"""Lets vLLM fork the workers of an engine from the server that the engine's process was forked from.

Only that server imports this (``generators/vllm/cpu/engine_process.py``), so it holds in the engines' processes and nowhere else.
Each worker would otherwise be a new process, which imports vLLM once more.
"""

import multiprocessing
from multiprocessing import forkserver
from typing import Any

from vllm.v1.executor import multiproc_executor

from asyncrl.generators.vllm.cpu.engine_queues import remove_names

_server: Any = forkserver._forkserver
# A process that was forked from a server has the server's address, but Python would start another server for it.
_server.ensure_running = lambda: None
multiproc_executor.get_mp_context = lambda: multiprocessing.get_context("forkserver")
remove_names()  # also where an engine has several nodes, for which vLLM takes no executor but its own
