"""Starts the process that drives a run or an evaluation for this one, and hears whether it began."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import BinaryIO, NamedTuple, TextIO

import msgspec

from asyncrl.cli.driving.messages import Answer, Began, Refused, Request
from asyncrl.core.errors import ComponentFailed, RecipeError
from asyncrl.core.plug_ins.plug_in import refuse_while_importing


class Driver(NamedTuple):
    """A process that was asked to drive, and where its answer comes from. Close ``answers`` in the end."""

    process: "subprocess.Popen[str]"
    answers: BinaryIO

    def began(self) -> Began:
        """Wait until the process has begun, and return what it answers.

        Raises:
            RecipeError: the request was refused; nothing was started.
            ComponentFailed: the process ended before it could begin.
        """
        line = self.answers.readline()
        answer = msgspec.json.decode(line, type=Answer) if line else None
        match answer:
            case Began():
                return answer
            case Refused(place, problem, remedy, notes):
                self.process.wait()
                error = RecipeError(place, problem, remedy)
                for note in notes:
                    error.add_note(note)
                raise error
        code = self.process.wait()
        raise ComponentFailed(f"{how_it_ended(code)} before it began; what it printed above says why")


def start_driver(request: Request, *, detached: bool = False) -> Driver:
    """Start a process that does what is requested. It ends with the thread that calls this, unless it is ``detached``.

    Raises:
        RecipeError: a module that a run imports calls this while it is imported, or the request names a file that is not UTF-8.
    """
    refuse_while_importing()
    try:
        asked = msgspec.json.encode(request).decode()
    except UnicodeEncodeError as error:
        raise RecipeError("", f"{error.object!r} is not UTF-8", "rename the file or folder that it names") from error
    reading, writing = os.pipe()
    inherits = detached or is_own(sys.stdout, 1)
    try:
        process = subprocess.Popen(
            [
                *(sys.executable, "-P", "-m", "asyncrl.cli.driving.driver"),
                *(asked, str(writing), "0" if detached else str(os.getpid())),
            ],
            stdin=subprocess.DEVNULL,
            stdout=None if inherits else subprocess.PIPE,
            stderr=None if inherits else subprocess.STDOUT,
            text=True,
            errors="replace",
            pass_fds=(writing,),
            env=_environment(inherits),
            # An interrupt reaches it once, from here, and not also through the terminal or the notebook's kernel.
            start_new_session=True,
        )
    except BaseException:
        os.close(reading)
        raise
    finally:
        os.close(writing)
    return Driver(process, open(reading, "rb"))


def _environment(inherits: bool) -> dict[str, str]:
    """Return the environment variables of a driver; environments of the user's own are importable there if they are here.

    Args:
        inherits: it writes where this process writes. Else its output is shown by whatever stands in place of ``sys.stdout``,
            which need not know colours: the FORCE_COLOR that a notebook's kernel sets is for the notebook.
    """
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}
    if not inherits:
        variables.pop("FORCE_COLOR", None)
    return variables


def start_detached(request: Request) -> Path:
    """Start a process that goes on without this one, and return the folder of what it does once it has begun.

    Raises what :meth:`Driver.began` raises, and ``KeyboardInterrupt``, which ends the process if it has not begun.
    """
    driver = start_driver(request, detached=True)
    with driver.answers:
        try:
            return Path(driver.began().folder)
        except KeyboardInterrupt:
            driver.process.send_signal(signal.SIGINT)
            driver.process.wait()
            raise


def is_own(stream: TextIO, descriptor: int) -> bool:
    """Whether a stream is this process's own, not what a notebook or a test has put in its place."""
    try:
        return stream is sys.__stdout__ and stream.fileno() == descriptor
    except (OSError, ValueError, AttributeError):
        return False


def how_it_ended(code: int) -> str:
    """Say how a driver ended, by its exit code."""
    return f"the driver was killed by signal {-code}" if code < 0 else f"the driver ended with code {code}"
