"""An environment whose tools run in processes of their own, and do what such tools should not."""

import functools
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

from asyncrl.core.task import Task
from asyncrl.envs import ToolEnvironment, ToolError, tool


def logged(function: Callable[..., Any]) -> Callable[..., Any]:
    """An ordinary decorator."""

    @functools.wraps(function)
    def wrapper(*arguments: Any, **named: Any) -> Any:
        return function(*arguments, **named)

    return wrapper


class Computing(ToolEnvironment):
    @tool(process=True)
    @staticmethod
    def square(number: int) -> int:
        """A square."""
        print("what a tool prints goes to the log")
        return number * number

    @tool(process=True)
    @staticmethod
    def print_in_vain(text: str) -> str:
        """A tool that prints into a log on a full disk."""
        full = os.open("/dev/full", os.O_WRONLY)
        os.dup2(full, 1)
        os.close(full)
        print(text, flush=True)
        return text

    @staticmethod
    @tool(process=True)
    async def process_number() -> int:
        """The process that runs this."""
        return os.getpid()

    @tool(process=True)
    @staticmethod
    def letters(word: str) -> Iterator[str]:
        """Letters."""
        yield from word

    @tool(process=True)
    @staticmethod
    async def letters_one_by_one(word: str) -> AsyncIterator[str]:
        """Letters."""
        for letter in word:
            yield letter

    @tool(process=True)
    @staticmethod
    @logged
    async def upper(word: str) -> str:
        """Upper case."""
        return word.upper()

    @tool(process=True)
    @staticmethod
    def bytes_of(word: str) -> bytes:
        """No text."""
        return word.encode()

    @tool(process=True)
    @staticmethod
    def refuse() -> str:
        """Refuses."""
        raise ToolError("not today")

    @tool(process=True)
    @staticmethod
    def fail() -> str:
        """Fails."""
        raise KeyError("inside")  # the line to name

    @tool(process=True)
    @staticmethod
    def end(code: int) -> str:
        """Ends its process."""
        os._exit(code)

    @tool(process=True)
    @staticmethod
    def garbage() -> str:
        """Writes to every file descriptor, as a hostile tool might."""
        for descriptor in range(3, 64):
            try:
                os.write(descriptor, b"\xff" * 8)
            except OSError:
                continue
        time.sleep(60)
        return ""

    @tool(process=True, timeout_s=60.0)
    @staticmethod
    def hang(file: str) -> str:
        """Hangs where nothing in Python can interrupt it, with a child that hangs, too."""
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        Path(file).write_text(f"{os.getpid()} {child.pid}")
        signal.pthread_sigmask(signal.SIG_BLOCK, set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP})
        signal.sigwait({signal.SIGUSR1})
        return ""

    def reward(self, task: Task, answer: str) -> float:
        return 0.0
