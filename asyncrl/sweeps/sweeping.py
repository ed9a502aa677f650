"""Runs the points of a sweep, each in a process of its own, as ``asyncrl launch`` runs a recipe.

What always holds: a point that fails does not end the others; a point that had begun is resumed by its run's own resume, or run
again where that is refused; when :meth:`Sweeping.run` returns, no process of a point is left. Each point's process ends its run
in order when this one is gone, however that ended.
"""

import asyncio
import os
import signal
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from asyncrl.core.files.file_errors import cause_and_remedy
from asyncrl.core.measures.units import duration
from asyncrl.run.folder.run_folder import RunFolder
from asyncrl.run.measures.measure_file import last_step
from asyncrl.run.recipe.compose import quoted
from asyncrl.sweeps.sweep import Point, Sweep
from asyncrl.sweeps.sweep_folder import PointState, SweepFolder

REFUSED = 2
"""The exit code of a launch that was refused."""
END_S = 60.0
"""How long a point may take to end once it was told to; and one whose sweep was killed, until this one goes on with it."""
_LOOK_S = 0.2
_TAIL_BYTES = 4096

Launch = Callable[[Sequence[str]], Sequence[str]]
"""Makes a command that launches a run, of the arguments of ``asyncrl launch``."""


class Sweeping:
    """Runs what is missing of a sweep.

    Args:
        devices: for each of the points that may run side by side, the GPUs that it may use, as ``CUDA_VISIBLE_DEVICES`` names
            them; None for those that this process may use.
        note: is told what begins and ends.
    """

    def __init__(
        self, folder: SweepFolder, sweep: Sweep, launch: Launch, devices: Sequence[str | None], note: Callable[[str], None]
    ) -> None:
        self._folder, self._sweep, self._launch, self._devices, self._note = folder, sweep, launch, devices, note
        self._where = sweep.launched_in if Path(sweep.launched_in).is_dir() else None
        self._waiting: deque[Point] = deque()
        self._running: dict[Point, asyncio.subprocess.Process] = {}
        self._stopped = asyncio.Event()

    async def run(self) -> None:
        """Run every point that has not completed; returns when all have ended, or when it was stopped."""
        points = self._sweep.points
        missing = [point for point in points if self._folder.state_of(point)[0] is not PointState.COMPLETED]
        self._waiting.extend(missing)
        if len(missing) < len(points):
            self._note(f"{len(points) - len(missing)} of {len(points)} points have completed before")
        async with asyncio.TaskGroup() as together:
            for device in self._devices:
                together.create_task(self._work(device))

    def stop(self) -> None:
        """Have the running points end in order, and begin no further one. A second call kills them, as a second Ctrl-C does."""
        self._stopped.set()
        for process in self._running.values():
            _interrupt(process)

    @property
    def progress(self) -> str:
        """A line on the points that are running now."""
        steps = [f"{self._sweep.settings[point.setting].name} seed={point.seed}{self._step(point)}" for point in self._running]
        left = len(self._waiting)
        return "; ".join(steps) + (f" ({left} to go)" if left else "")

    def _step(self, point: Point) -> str:
        run = self._folder.run_of(point)
        step = None if run is None else last_step(run.measures)
        return " starts" if step is None else f" step {step}"

    async def _work(self, device: str | None) -> None:
        while self._waiting and not self._stopped.is_set():
            point = self._waiting.popleft()
            name = f"{self._sweep.settings[point.setting].name} seed={point.seed}"
            begun = time.monotonic()
            try:
                await self._play(point, name, device)
            except OSError as error:
                self._note(f"{name} could not be run: {cause_and_remedy(error)}")
            else:
                self._tell(point, name, time.monotonic() - begun)

    async def _play(self, point: Point, name: str, device: str | None) -> None:
        run = self._folder.run_of(point)
        if run is not None:
            await self._until_free(run, name)
            if self._folder.state_of(point)[0] in (PointState.COMPLETED, PointState.RUNNING) or self._stopped.is_set():
                return
            self._note(f"{name} goes on where it was")
            if await self._process(point, ["--resume", str(run.path)], device) != REFUSED or self._stopped.is_set():
                return
            self._note(f"{name} cannot be resumed ({self._last_line(point)}), and is run again")
        else:
            self._note(f"{name} begins")
        await self._process(point, [str(self._folder.recipe_of(point.name)), f"run_dir={quoted(str(self._folder.path))}"], device)

    async def _until_free(self, run: RunFolder, name: str) -> None:
        """Wait for the end of a run whose sweep was killed: it ends by itself."""
        told, end = False, time.monotonic() + END_S
        while run.is_driven and not self._stopped.is_set() and time.monotonic() < end:
            if not told:
                self._note(f"{name} is still ending")
            told = True
            await asyncio.sleep(_LOOK_S)

    async def _process(self, point: Point, arguments: Sequence[str], device: str | None) -> int:
        environment = dict(os.environ)
        if device is not None:
            environment["CUDA_VISIBLE_DEVICES"] = device
        with self._folder.log_of(point).open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                *self._launch(arguments),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                cwd=self._where,
                # An interrupt reaches it once, from here, and not also through the terminal.
                start_new_session=True,
            )
        self._running[point] = process
        try:
            if self._stopped.is_set():  # while it started
                _interrupt(process)
            return await self._until_over(process)
        finally:
            del self._running[point]

    async def _until_over(self, process: asyncio.subprocess.Process) -> int:
        """Wait for the end of a process, which comes soon after the sweep is stopped; returns its exit code."""
        over, stopped = asyncio.create_task(process.wait()), asyncio.create_task(self._stopped.wait())
        try:
            await asyncio.wait({over, stopped}, return_when=asyncio.FIRST_COMPLETED)
            if not over.done():
                await asyncio.wait({over}, timeout=END_S)
            if not over.done():
                process.kill()
            return await over
        finally:
            stopped.cancel()

    def _tell(self, point: Point, name: str, seconds: float) -> None:
        state, summary = self._folder.state_of(point)
        match state:
            case PointState.COMPLETED if summary is not None:
                reward = summary.evaluation.last
                figures = f"{summary.trajectories_per_s:.3g} trajectories/s, staleness {summary.staleness.mean:.2f}"
                found = figures if reward is None else f"evaluation {reward:.3f}, {figures}"
                self._note(f"{name} completed in {duration(seconds)}: {found}")
            case PointState.RUNNING:
                self._note(f"{name} is still running, by a process of its own: it is left alone")
            case _:
                reason = (summary.reason if summary is not None else "") or self._last_line(point)
                self._note(f"{name} {'was not begun' if state is PointState.MISSING else state}: {reason}")

    def _last_line(self, point: Point) -> str:
        """What the point's driver wrote last."""
        try:
            with self._folder.log_of(point).open("rb") as log:
                log.seek(max(0, log.seek(0, os.SEEK_END) - _TAIL_BYTES))
                lines = log.read().decode(errors="replace").split("\n")
        except OSError:
            lines = []
        return next((line.strip() for line in reversed(lines) if line.strip()), f"see {self._folder.log_of(point)}")


async def until_over(sweeping: Sweeping, show: Callable[[str], None], every_s: float) -> None:
    """Run a sweep, and show its progress now and then."""
    running = asyncio.create_task(sweeping.run())
    while not running.done():
        show(sweeping.progress)
        await asyncio.wait({running}, timeout=every_s)
    await running


def _interrupt(process: asyncio.subprocess.Process) -> None:
    with suppress(ProcessLookupError):  # it has just ended
        process.send_signal(signal.SIGINT)
