"""`asyncrl launch quickstart`, made small, as a process on the real engines."""

import contextlib
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from asyncrl.core.recipe.environment import ClassEnvironmentConfig
from asyncrl.learners.tiny import ensure_tiny_model
from asyncrl.learners.tiny.settings import WarmUp
from asyncrl.run.measures.summary import Summary

ASYNCRL = ("-m", "asyncrl.cli.main")
LOOK_S = 0.5
"""Seconds between two looks at all processes of this machine, each of which takes milliseconds that the run lacks."""
SHORT = WarmUp(steps=3, lr_steps=1, batch_size=4, measure_every=2, skill=0.0, training_tasks=60, held_out_tasks=30)


def small_model(cache: Path) -> Path:
    """The tiny model, hardly warmed up: what it answers does not matter here."""
    return ensure_tiny_model({"": ClassEnvironmentConfig(name="calculator")}, 0, lambda progress: None, cache, SHORT)


def small_run(model: Path, parent: Path) -> list[str]:
    """Overrides that make the quickstart small; its folder is to be in ``parent``."""
    small = [f"model.path={model}", f"run_dir={parent}", "batch.groups_per_step=4", "batch.group_size=4"]
    return [*small, "tasks.train=100", "tasks.evaluation=8", "evaluation.every=2", "sampling.max_turn_tokens=16"]


class Run:
    """One Python process that drives a run, or an evaluation, and all processes below it."""

    def __init__(self, parent: Path, *arguments: str) -> None:
        self._parent = parent
        self._output = parent / f"output-{len(list(parent.glob('output-*')))}.txt"
        with self._output.open("wb") as output:
            self.process = subprocess.Popen([sys.executable, *arguments], stdout=output, stderr=subprocess.STDOUT)
        self._seen: dict[int, psutil.Process] = {}

    @classmethod
    def launch(cls, model: Path, parent: Path, *overrides: str) -> "Run":
        """The quickstart, made small."""
        return cls(parent, *ASYNCRL, "launch", "quickstart", *small_run(model, parent), *overrides)

    @classmethod
    def resume(cls, folder: Path, *overrides: str) -> "Run":
        """Go on with the run in ``folder``."""
        return cls(folder.parent, *ASYNCRL, "launch", "--resume", str(folder), *overrides)

    def wait_for(self, condition: Callable[[], bool], seconds: float, what: str) -> None:
        """Until ``condition`` holds, which it does at the latest when the process ends; remembers every descendant on the way."""
        deadline, ended, looked = time.monotonic() + seconds, False, 0.0
        while not condition():
            assert not ended, f"it ended before {what}; output: {self.output}"
            now = time.monotonic()
            assert now < deadline, f"{what} took longer than {seconds} s; output: {self.output}"
            if now >= looked + LOOK_S:
                self._remember()
                looked = now
            ended = self.process.poll() is not None
            time.sleep(0.1)

    def _remember(self) -> None:
        try:
            self._seen.update({child.pid: child for child in psutil.Process(self.process.pid).children(recursive=True)})
        except psutil.NoSuchProcess:
            return

    def kill(self) -> None:
        """SIGKILL to the driver and all of its descendants."""
        everything = self.descendants()
        self.process.kill()
        for process in everything:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self.process.wait()

    def descendants(self, name: str = "") -> list[psutil.Process]:
        """The processes of the run that live, and have ``name`` in their command line."""
        self._remember()
        lines = [(process, _command_line(process)) for process in self._seen.values()]
        return [process for process, line in lines if line is not None and name in line]

    @property
    def output(self) -> str:
        """Everything that the run has printed so far."""
        return self._output.read_text(errors="replace")

    def end(self, seconds: float) -> int:
        """Its exit code, once it has ended by itself."""
        self.wait_for(lambda: self.process.poll() is not None, seconds, "ending")
        return self.process.returncode

    @property
    def folder(self) -> Path:
        """The run folder."""
        (folder,) = self._parent.glob("quickstart-*")
        return folder

    @property
    def summary(self) -> Summary:
        """The summary that the run wrote when it ended."""
        return Summary.read(self.folder / "summary.json")

    def left_behind(self) -> list[str]:
        """Descendants that are still there."""
        assert self._seen, "no descendant was ever seen"
        return [line for process in self._seen.values() if (line := _command_line(process)) is not None]


def lives(process: psutil.Process) -> bool:
    """Whether the process has not ended. A zombie has: the driver, which adopts orphans, has not asked how yet."""
    return _command_line(process) is not None


def _command_line(process: psutil.Process) -> str | None:
    """None if the process has ended."""
    try:
        alive = process.is_running() and process.status() != psutil.STATUS_ZOMBIE
        return " ".join(process.cmdline()) if alive else None
    except psutil.NoSuchProcess:
        return None
