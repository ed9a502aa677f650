"""Begins the process of an actor."""

from multiprocessing import util
from pathlib import Path

from asyncrl.run.host.process_output import route_output

_flags = vars(util)["_args_from_interpreter_flags"]


def begin_actor(log_file: Path) -> None:
    """Send all output of this process and its children into a file, and have its children hide no library.

    Python would look for modules in the current folder first, in each interpreter that multiprocessing starts: a file
    ``random.py`` of the user's would be taken for the library's.
    """
    vars(util)["_args_from_interpreter_flags"] = lambda: [*_flags(), "-P"]
    route_output(log_file)
