"""What the machine has that a run depends on."""

import os
from pathlib import Path

import msgspec
import psutil

BFLOAT16_INSTRUCTIONS = frozenset({"avx512_bf16", "amx_bf16", "bf16"})
"""What ``/proc/cpuinfo`` calls instructions that multiply bfloat16: of x86 processors, and last of ARM ones."""


class Machine(msgspec.Struct, frozen=True):
    """A machine.

    Attributes:
        memory, free: bytes of memory, in all and free now.
        cores: processor cores that this process may use.
        gpus: NVIDIA GPUs.
        bfloat16: whether the processor has instructions for bfloat16; without them vLLM computes it several times slower than
            float32.
    """

    memory: int
    free: int
    cores: int
    gpus: int = 0
    bfloat16: bool = False

    @classmethod
    def here(cls) -> "Machine":
        """This machine."""
        found = psutil.virtual_memory()
        return cls(
            memory=found.total,
            free=found.available,
            cores=len(os.sched_getaffinity(0)),
            gpus=len(list(Path("/dev").glob("nvidia[0-9]*"))),
            bfloat16=not BFLOAT16_INSTRUCTIONS.isdisjoint(_instructions()),
        )


def _instructions() -> set[str]:
    """Names of the processor's instruction sets; none where the system does not tell."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return set()
    found = (line.partition(":")[2] for line in lines if line.partition(":")[0].strip() in ("flags", "Features"))
    return set(next(found, "").split())
