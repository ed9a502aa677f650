"""Has the controller of section ``tune`` see each training step, and does what it wants beside training.

What always holds: a line is in the journal before what it says is done; no training step waits for a plan or for a move.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from asyncrl.core.errors import RecipeError
from asyncrl.core.files.file_errors import cause_and_remedy
from asyncrl.core.process.control_groups import usable_cores
from asyncrl.core.recipe.knobs import Setting
from asyncrl.core.recipe.schema import Recipe
from asyncrl.core.tuning.controller import Controller
from asyncrl.core.tuning.moves import Judged, Line, Turn
from asyncrl.core.tuning.window import Seen
from asyncrl.run.folder.run_folder import RunFolder
from asyncrl.run.measures.metrics import TUNE_BROUGHT, TUNE_FORESEEN
from asyncrl.run.recorder import RecordedStep
from asyncrl.run.tuning.advice_question import AskAdvice, TuneAdvice, ask_advice
from asyncrl.run.tuning.move_journal import MoveJournal

if TYPE_CHECKING:
    from asyncrl.run.tuning.run_knobs import RunKnobs

DISTURBED = 0.05
"""Share of a step for which engines evaluated, above which it is left out."""
SELDOM = 4
"""Steps with evaluations are left out where no more than one in so many has one."""


class Tuner:
    """Tunes one run. Call :meth:`begin`, then :meth:`step` after each training step, and :meth:`close` whatever happens.

    Args:
        recipe: with a section ``tune``.
        device: what the run computes on.
        note: shows a line to the user.
        log: records metrics of a step.
    """

    def __init__(
        self,
        recipe: Recipe,
        knobs: "RunKnobs",
        folder: RunFolder,
        device: str,
        note: Callable[[str], None],
        log: Callable[[int, Mapping[str, float]], None],
        ask: AskAdvice = ask_advice,
    ) -> None:
        assert recipe.tune is not None
        self._recipe, self._config, self._knobs, self._folder = recipe, recipe.tune, knobs, folder
        self._machine = f"{device}, {usable_cores()} cores"
        self._journal, self._note, self._log, self._ask = MoveJournal(folder.tuning), note, log, ask
        self._controller: Controller
        self._asked: Setting = {}
        self._planning: asyncio.Task[TuneAdvice] | None = None
        self._moving: asyncio.Task[None] | None = None
        self._stopped = False

    async def begin(self) -> None:
        """Go on from the journal, if the run is resumed."""
        setting = await self._knobs.setting()
        depth = self._recipe.largest_depth
        self._controller = Controller(
            self._config,
            setting,
            steps=self._recipe.steps - depth - 1,
            depth=depth,
            machine=self._machine,
            lines=self._journal.read(),
        )
        self._say(self._controller.said)

    async def step(self, recorded: RecordedStep) -> None:
        """Look at a training step. What it leads to is done meanwhile."""
        await self._collect()
        time, every = recorded.measure.time, self._recipe.evaluation.every
        if self._stopped or not recorded.usual or (time.evaluating > DISTURBED and every >= SELDOM):
            return
        seen = Seen(
            step=recorded.measure.step,
            tokens=time.trained_tokens,
            episodes=time.trajectories,
            seconds=time.seconds,
            staleness_mean=recorded.measure.staleness_mean,
            sample_size=recorded.sample_size,
            clip_share=recorded.clip_share,
        )
        self._say(self._controller.step(seen, await self._knobs.setting(), arrived=self._knobs.arrived))
        await self._act()

    def finish(self) -> None:
        """Note that the last step is done."""
        self._say(self._controller.finished())

    async def close(self) -> None:
        """Do nothing more."""
        for task in (self._planning, self._moving):
            if task is not None:
                task.cancel()
                await asyncio.wait([task])

    async def _collect(self) -> None:
        """Tell the controller what came of plans and moves."""
        if self._moving is not None and self._moving.done():
            moving, self._moving = self._moving, None
            try:
                moving.result()
                self._controller.made()
            except RecipeError as refused:
                self._say(self._controller.refused(str(refused), await self._knobs.setting()))
        if self._planning is not None and self._planning.done():
            planning, self._planning = self._planning, None
            answer, setting = planning.result(), await self._knobs.setting()
            if answer.why or len(answer.foreseen) < 2:
                why = answer.why or "no other setting can be modelled"
                self._say(self._controller.unplanned(why, self._asked, setting))
            else:
                present, *others = answer.foreseen
                self._say(self._controller.planned(present, others, setting))
        await self._act()

    async def _act(self) -> None:
        """Begin what the controller wants."""
        controller = self._controller
        if self._stopped:
            return
        if controller.asks and self._planning is None:
            self._asked = dict(controller.target)
            asking = self._ask(self._folder.path, controller.since, (self._asked, *controller.asks))
            self._planning = asyncio.create_task(asking, name="plan for tune")
        if controller.turn is not None and self._moving is None:
            self._moving = asyncio.create_task(self._turn(controller.turn), name="turning a knob")

    async def _turn(self, turn: Turn) -> None:
        if (await self._knobs.setting())[turn.knob] == turn.before:  # else somebody else has just turned it
            await self._knobs.turn(turn.knob, turn.to)

    def _say(self, lines: Iterable[Line]) -> None:
        for line in lines:
            try:
                self._journal.append(line)
            except OSError as error:  # no reason to end the run, but a resume would not know how it stands
                self._stopped = True
                self._note(f"tune: turns nothing any more: {cause_and_remedy(error)} ({self._folder.tuning})")
                return
            self._note(line.sentence)
            if isinstance(line, Judged) and line.brought is not None:
                self._log(line.step, {TUNE_FORESEEN.name: line.foreseen, TUNE_BROUGHT.name: line.brought})
