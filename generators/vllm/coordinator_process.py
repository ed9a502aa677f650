"""Ends vLLM's coordinator of data-parallel ranks with the generator that started it.

vLLM runs no plug-in in the coordinator's process, which would stay if the generator were killed outright.
"""

from typing import Any

from vllm.v1.engine import coordinator

from asyncrl.core.process.parent_watch import die_with_parent

_run = coordinator.DPCoordinatorProc.run_coordinator


def tie_coordinators() -> None:
    """Have the coordinators that this process starts end with it. vLLM has no setting for it, so a function is replaced."""
    coordinator.DPCoordinatorProc.run_coordinator = staticmethod(run_coordinator)


def run_coordinator(*arguments: Any, **options: Any) -> None:
    """Run as a coordinator, in a process of its own, until the process that started it is gone."""
    die_with_parent()
    _run(*arguments, **options)
