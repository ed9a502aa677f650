"""Says what a learner rank that died probably died of, by the last lines of its log.

NCCL ends a process whose collective is late instead of raising an error, and so do CUDA and the system's memory guard: the driver
only sees that the process is gone.
"""

import re
from pathlib import Path
from typing import NamedTuple

from asyncrl.core.errors import ProcessDied

READ_BYTES = 256 << 10
"""How much of the log's end is read."""


class _Sign(NamedTuple):
    pattern: re.Pattern[str]
    meaning: str


_SIGNS = (
    _Sign(
        re.compile(r"CUDA out of memory|torch\.OutOfMemoryError|CUDA error: out of memory"),
        "it ran out of GPU memory; lower learner.micro_batch_tokens, set learner.recompute=full, or lower "
        "generators.gpu_memory_share if an engine shares the GPU",
    ),
    _Sign(
        re.compile(r"Duplicate GPU detected"),
        "NCCL found two ranks on one GPU; give each rank a GPU of its own (learner.gpu=own), or use fewer ranks",
    ),
    _Sign(
        re.compile(r"Watchdog caught collective operation timeout|some NCCL operations have failed or timed out"),
        "NCCL ended it because a collective did not finish in time: another rank was late or had died; look for the first error "
        "in the logs of the other ranks, and if there is none, raise deadlines.step",
    ),
    _Sign(
        re.compile(r"CUDA error: (?:an illegal memory access|device-side assert|unspecified launch failure)"),
        "a kernel failed on its GPU; set CUDA_LAUNCH_BLOCKING=1 and run again to see which",
    ),
    _Sign(
        re.compile(r"ncclSystemError|ncclUnhandledCudaError|ncclRemoteError|ncclInternalError|NCCL error"),
        "NCCL failed; set NCCL_DEBUG=INFO and run again, and see `asyncrl doctor`",
    ),
)
"""Signs that the log of a dead rank may hold. What kills a rank by itself comes before what follows from another's end."""


def explained(death: ProcessDied, log: Path) -> ProcessDied:
    """Return the error with what the rank probably died of, as far as its log says."""
    cause = probable_cause(log)
    return ProcessDied(f"{death}: probably {cause} (see {log})") if cause else death


def probable_cause(log: Path) -> str:
    """Return what a process with this log probably died of; empty if the log holds no known sign."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - READ_BYTES))
            last_lines = file.read().decode(errors="replace")
    except OSError:
        return ""
    return next((sign.meaning for sign in _SIGNS if sign.pattern.search(last_lines)), "")
