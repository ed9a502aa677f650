"""Keeps vLLM's processes from making semaphores that outlive them.

A progress bar of tqdm locks with a semaphore that other processes could share. In a process that was not simply forked it has a
name, which stays in the memory file system if the process is killed, as Ray does with what a generator has started: of an engine,
the bar that loads its weights left one in most launches. No process shares bars with an engine.
"""

import threading

from tqdm.std import tqdm


def own_progress_locks() -> None:
    """Have the progress bars of this process lock among its threads alone."""
    tqdm.set_lock(threading.RLock())
