"""The register of what the command line replaces in rich that rich keeps to itself; see :mod:`asyncrl.core.reach`."""

from asyncrl.core.reach import Reach

REACHES = (
    Reach(
        files=("asyncrl/cli/console.py",),
        names=("rich.console.Console._check_buffer", "rich.console.Console._buffer"),
        why="go on, and fail at the end, when a terminal or a full disk refuses output, where rich would raise in the middle",
        test="tests/cli/test_command_line.py::test_what_the_system_refuses_is_told_without_a_traceback",
        needless="rich has a hook for errors of writing, as on_broken_pipe is one for pipes",
    ),
)
"""What is reached in rich 13 and later."""
