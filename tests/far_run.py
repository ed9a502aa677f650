"""A whole run on hosts made of namespaces: launched on the first, watched from outside."""

import re
import signal
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from sqlite3 import connect

import psutil
from two_nodes import Host, RayCluster

from asyncrl.run.measures.summary import Summary

RUNS = Path("/tmp/runs")
"""Where the first host keeps its runs; no other host sees it."""


class FarRun:
    """A process of ``asyncrl`` on the first host.

    Args:
        arguments: the command and its arguments.
        told: called with each line of its output, while somebody waits for something.
        there: the folder of the first host that it is launched in, instead of this process's.
    """

    def __init__(
        self,
        head: Host,
        cluster: RayCluster,
        *arguments: str,
        told: Callable[[str], None] = lambda line: None,
        there: Path | None = None,
        **environment: str,
    ) -> None:
        self._head, self._told, self._shown = head, told, 0
        command = [*([] if there is None else ["env", f"--chdir={there}"]), sys.executable, "-m", "asyncrl.cli.main", *arguments]
        self._output = head.seen_from_outside(Path(f"/tmp/output-{time.monotonic_ns()}"))
        with self._output.open("wb") as output:
            variables = {**cluster.environment, "PYTHONPATH": ":".join(filter(None, sys.path)), **environment}
            self.process = head.popen(command, variables, output.fileno())

    @property
    def output(self) -> str:
        return self._output.read_text(errors="replace")

    def look(self) -> str:
        """Tell the lines that are new, and return the whole output."""
        output = self.output
        whole = output[: output.rfind("\n") + 1]
        for line in whole[self._shown :].splitlines():
            self._told(line)
        self._shown = len(whole)
        return output

    def wait_for(self, pattern: str, seconds: float, after: int = 0) -> int:
        """Until the run has printed ``pattern``, in its output from a place on; returns the place behind it."""
        by = time.monotonic() + seconds
        while (found := re.compile(pattern).search(self.look(), after)) is None:
            assert self.process.poll() is None, f"the run ended before {pattern!r}: {self.output}"
            assert time.monotonic() < by, f"{pattern!r} took longer than {seconds:g} s: {self.output}"
            time.sleep(0.2)
        return found.end()

    @property
    def step(self) -> int:
        """The last training step that the run has told of."""
        return int(re.findall(r"training step (\d+)/", self.output)[-1])

    def values(self, metric: str) -> dict[int, float]:
        """The values of a metric so far, by training step."""
        with closing(connect(self.folder.parent / "mlflow.db", timeout=10)) as database:
            return dict(database.execute("select step, value from metrics where key = ? order by step", (metric,)).fetchall())

    def interrupt(self, seconds: float) -> Summary:
        """Its summary, once it has ended because of Ctrl-C."""
        for child in psutil.Process(self.process.pid).children():
            child.send_signal(signal.SIGINT)
        self.process.wait(seconds)
        self.look()
        return Summary.read(self.folder / "summary.json")

    @property
    def folder(self) -> Path:
        """The folder of the only run, as seen from outside."""
        (folder,) = [path for path in self._head.seen_from_outside(RUNS).iterdir() if (path / "recipe.yaml").is_file()]
        return folder
