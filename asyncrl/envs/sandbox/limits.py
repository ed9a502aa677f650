"""The limits of one run in the sandbox."""

from typing import Annotated

import msgspec
from msgspec import Meta

LONGEST_S = 1_000_000.0
MOST_OUTPUT_KB = 16384


class Limits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one run may use. A run that crosses a limit is killed with everything it started.

    Attributes:
        wall_s: seconds from the start to the end of the run.
        cpu_s: seconds of processor time, summed over the run's processes.
        memory_mb: memory in MiB, summed over the run's processes.
        processes: processes and threads at one moment.
        file_mb: size of the largest file in MiB; a write beyond it fails.
        folder_mb: size of the run's folder in MiB, with 4 KiB for each file, whatever its size.
        output_kb: standard output and standard error in KiB, each.
    """

    wall_s: Annotated[float, Meta(gt=0.0, le=LONGEST_S)] = 8.0
    cpu_s: Annotated[float, Meta(gt=0.0, le=LONGEST_S)] = 4.0
    memory_mb: Annotated[int, Meta(ge=32, le=65536)] = 512
    processes: Annotated[int, Meta(ge=1, le=1024)] = 32
    file_mb: Annotated[int, Meta(ge=1, le=65536)] = 64
    folder_mb: Annotated[int, Meta(ge=1, le=65536)] = 256
    output_kb: Annotated[int, Meta(ge=1, le=MOST_OUTPUT_KB)] = 64

    def with_room_for(self, text: str) -> "Limits":
        """Return the limits of a run that is to print ``text``, and may print more, such as spaces at the ends of its lines.

        Raises:
            ValueError: no run may print that much.
        """
        size_kb = len(text.encode(errors="replace")) // 1024
        if size_kb >= MOST_OUTPUT_KB:
            problem = f"{size_kb:,} KiB of output are expected, and the sandbox takes at most {MOST_OUTPUT_KB:,} KiB of a run"
            raise ValueError(f"{problem}; expect less")
        return msgspec.structs.replace(self, output_kb=min(self.output_kb + 2 * size_kb, MOST_OUTPUT_KB))
