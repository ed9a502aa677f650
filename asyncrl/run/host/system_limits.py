"""What the system allows a run: enough open files and processes to start, and a home folder."""

import os
import resource
from pathlib import Path

from asyncrl.core.errors import RecipeError
from asyncrl.core.process.control_groups import processes_left

LEAST = 256
"""The smallest run needs about 100 in Ray's own processes. With fewer, these die without saying why."""
LEAST_PROCESSES = 256
"""The smallest run on two cores has about 280 processes and threads, most of them Ray's, which waits for good without them."""
WANTED = 65_536
"""What a process asks for; some programs take time for each descriptor that they might have."""


def allowed() -> int:
    """How many a process may have open once :func:`allow_open_files` was called."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return WANTED if hard == resource.RLIM_INFINITY else min(hard, WANTED)


def check_limits() -> None:
    """Refuse to start where processes could not have enough files open, could not begin enough processes, or have no home.

    Raises:
        RecipeError: the system's limit is below :data:`LEAST` or :data:`LEAST_PROCESSES`, or the user has no home folder.
    """
    if allowed() < LEAST:
        problem = f"a process may have {allowed()} files and connections open here, and those of a run need {LEAST} at least"
        raise RecipeError("", problem, "raise the limit (ulimit -n 4096; as root ulimit -Hn, or limits.conf), then launch again")

    left = None if os.environ.get("RAY_ADDRESS") else processes_left()  # Ray's processes of a cluster are there already
    if left is not None and left < LEAST_PROCESSES:
        problem = f"{left} more processes and threads may begin here, and a run has {LEAST_PROCESSES} at least"
        raise RecipeError("", problem, "raise the limit of the container or service (pids.max) or of the user (ulimit -u)")

    try:
        Path.home()
    except RuntimeError as error:
        problem = f"user {os.getuid()} has no home folder here, and MLflow asks for one"
        raise RecipeError("", problem, "set HOME to a folder that this user may write to") from error


def allow_open_files() -> None:
    """Let this process, and those that it starts, have as many files open as the system allows: shells often allow only 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < allowed():
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed(), hard))
