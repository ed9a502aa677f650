"""Has a process end in order when the one that started it is gone, however that ended.

A command that is not ours is started as ``python -m asyncrl.run.host.parent PARENT COMMAND``, which becomes it.
"""

import ctypes
import os
import signal
import sys
from collections.abc import Sequence

EXIT_INTERRUPTED = 130
_PR_SET_PDEATHSIG = 1


def stop_with(parent: int) -> None:
    """Have the system send SIGTERM to this process when the thread that started it, which waits for it, is gone.

    Args:
        parent: the process that started this one; where it is gone already, this process ends at once.
    """
    if hasattr(ctypes.CDLL(None), "prctl"):
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        if os.getppid() != parent:  # it was gone before
            os._exit(EXIT_INTERRUPTED)


def ending_with_this(command: Sequence[str]) -> list[str]:
    """Return the command line of a command that gets SIGTERM when the thread of this process that starts it is gone."""
    return [sys.executable, "-P", "-m", "asyncrl.run.host.parent", str(os.getpid()), *command]


if __name__ == "__main__":
    stop_with(int(sys.argv[1]))
    os.execvp(sys.argv[2], sys.argv[2:])  # the system remembers what was asked of it
