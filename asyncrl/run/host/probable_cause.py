"""Says what a process that died or did not start probably died of, by its log.

NCCL ends a process whose collective is late instead of raising an error, and so do CUDA and the system's memory guard: the driver
only sees that the process is gone. vLLM writes what its engine did not start of into the log alone.
"""

import re
from pathlib import Path
from typing import NamedTuple

from asyncrl.core.errors import ComponentFailed, ProcessDied, ProcessUnreachable

READ_BYTES = 256 << 10
"""How much of the log's end is read."""
_OF_ENGINE = re.compile(
    r"^\((?:EngineCore|Worker)[^)]*\) ERROR [^\]]*\] ([A-Za-z_.]*(?:Error|Exception|Exit): .*\S)", re.MULTILINE
)
"""How the processes of vLLM's engine end the traceback of what they did not start of."""


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
        re.compile(r"(?<!Again: )Resource temporarily unavailable|can't start new thread|Thread creation failed"),
        "it may begin no further process or thread; raise their limit (pids limit of its container or service; ulimit -u)",
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
"""Signs that a log may hold. What kills a process by itself comes before what follows from another's end."""


def explained(failure: ComponentFailed, log: Path) -> ComponentFailed:
    """Return the error with what its process probably died or did not start of, as far as its log says.

    Errors of other kinds, such as the loss of a node, say it themselves, and what is done about them follows from their kind.
    """
    if type(failure) not in (ComponentFailed, ProcessDied, ProcessUnreachable) or not (cause := probable_cause(log)):
        return failure
    kind = ProcessDied if isinstance(failure, ProcessDied) else ComponentFailed
    return kind(f"{str(failure).removesuffix('; see its log')}: probably {cause} (see {log})")


def probable_cause(log: Path) -> str:
    """Return what a process with this log probably died of; empty if the log holds no known sign."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - READ_BYTES))
            last_lines = file.read().decode(errors="replace")
    except OSError:
        return ""
    if known := next((sign.meaning for sign in _SIGNS if sign.pattern.search(last_lines)), ""):
        return known
    first = _OF_ENGINE.search(last_lines)  # later ones follow from it
    return first[1] if first else ""
