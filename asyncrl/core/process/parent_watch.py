"""Ends this process when the one that started it is gone, for whatever reason.

A generator that is killed outright cannot stop vLLM's processes; without this they would stay, idle, with all their memory.
"""

import multiprocessing
import os
import threading
from multiprocessing.connection import wait

_THREAD = "asyncrl parent watch"
_EXIT_CODE = 1


def die_with_parent() -> None:
    """Watch the parent from a thread of this process. Does nothing in a process that multiprocessing did not start, or if called
    again.

    The thread waits on the pipe that closes with the parent *process*. The kernel's own parent-death signal is sent when the
    *thread* that started this process ends, and an engine may be started from a short-lived thread.
    """
    parent = multiprocessing.parent_process()
    if parent is None or any(thread.name == _THREAD for thread in threading.enumerate()):
        return

    def watch() -> None:
        wait([parent.sentinel])
        os._exit(_EXIT_CODE)  # nobody is left to clean up for, and an orderly exit could hang

    threading.Thread(target=watch, name=_THREAD, daemon=True).start()
