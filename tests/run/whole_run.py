"""`asyncrl launch quickstart`, made small, as a process on the real engines."""

import contextlib
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from asyncrl.core.recipe.environment import ClassEnvironment
from asyncrl.run.summary import Summary
from learners.tiny import ensure_tiny_model
from learners.tiny.settings import WarmUp

SHORT = WarmUp(steps=3, lr_steps=1, batch_size=4, measure_every=2, skill=0.0, training_tasks=60, held_out_tasks=30)


def small_model(cache: Path) -> Path:
    """The tiny model, hardly warmed up: what it answers does not matter here."""
    return ensure_tiny_model({"": ClassEnvironment(name="calculator")}, 0, lambda progress: None, cache, SHORT)


class Run:
    """One process that drives a run, or an evaluation."""

    def __init__(self, parent: Path, *arguments: str, command: str = "launch") -> None:
        self._parent = parent
        self._output = parent / f"output-{len(list(parent.glob('output-*')))}.txt"
        with self._output.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "asyncrl.cli.main", command, *arguments], stdout=output, stderr=subprocess.STDOUT
            )
        self._seen: dict[int, psutil.Process] = {}

    @classmethod
    def launch(cls, model: Path, parent: Path, *overrides: str) -> "Run":
        """The quickstart, made small."""
        small = [f"model.path={model}", f"run_dir={parent}", "batch.groups_per_step=4", "batch.group_size=4"]
        small += ["tasks.train=100", "tasks.evaluation=8", "evaluation.every=2", "sampling.max_turn_tokens=16"]
        return cls(parent, "quickstart", *small, *overrides)

    @classmethod
    def resume(cls, folder: Path) -> "Run":
        """Go on with the run in ``folder``."""
        return cls(folder.parent, "--resume", str(folder))

    def wait_for(self, condition: Callable[[], bool], seconds: float, what: str) -> None:
        """Until ``condition`` holds; remembers every descendant on the way."""
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, f"{what} took longer than {seconds} s; output: {self.output}"
            if self.process.poll() is None:
                self._remember()
            time.sleep(0.1)

    def _remember(self) -> None:
        try:
            self._seen.update({child.pid: child for child in psutil.Process(self.process.pid).children(recursive=True)})
        except psutil.NoSuchProcess:
            return

    def kill(self, name: str = "") -> None:
        """SIGKILL to the descendants with ``name`` in their command, or without a name to the driver and all of them."""
        self._remember()
        chosen = [p for p in self._seen.values() if p.is_running() and (not name or name in " ".join(p.cmdline()))]
        assert chosen, f"no process named {name}"
        if not name:
            self.process.kill()
        for process in chosen:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        if not name:
            self.process.wait()

    def descendants(self) -> list[psutil.Process]:
        """The processes of the run that live."""
        self._remember()
        return [p for p in self._seen.values() if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]

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
        (folder,) = [path for path in self._parent.iterdir() if path.is_dir()]
        return folder

    @property
    def summary(self) -> Summary:
        """The summary that the run wrote when it ended."""
        return Summary.read(self.folder / "summary.json")

    def left_behind(self) -> list[str]:
        """Descendants that are still there."""
        assert self._seen, "no descendant was ever seen"
        return [" ".join(p.cmdline()) for p in self.descendants()]
