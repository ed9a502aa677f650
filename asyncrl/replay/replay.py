"""Computes training steps of a run again, and what they would have been with changes, and compares both with the record.

What always holds: nothing of the run changes; the steps before those that were asked for are computed as they were, with changes
only from there on.
"""

import asyncio
from collections.abc import Sequence
from heapq import nlargest
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from asyncrl.core.batch import Batch
from asyncrl.core.errors import ComponentFailed, RecipeError
from asyncrl.core.measures.gap_cause import likely_cause
from asyncrl.core.recipe.schema import Recipe
from asyncrl.core.text import pluralize
from asyncrl.learners.checkpointing import checkpoints
from asyncrl.learners.metrics import MOST_LOAD, gap_evidence
from asyncrl.replay.comparison import Comparison, compare
from asyncrl.replay.job import Answer, CarriedRow, CarriedToken, Job, Replayed, Stopped, record_of
from asyncrl.replay.kept_steps import KeptSteps, Start
from asyncrl.replay.odd_rewards import odd_rewards
from asyncrl.replay.rank_group import ReplayFailed, run_ranks
from asyncrl.replay.rank_process import hook_of
from asyncrl.replay.replay_plan import Leg, Row, check_rows, is_about_computing, legs, trained_by, version_after, without
from asyncrl.replay.watching import most_first, or_infinite
from asyncrl.run.folder.run_folder import RunFolder, in_launch_directory
from asyncrl.run.folder.step_log import StepRecord
from asyncrl.run.measures.warnings import gap_sides
from asyncrl.run.models.model_sources import with_local_reference
from asyncrl.run.nodes.machine import Machine
from asyncrl.run.resolve_model import resolve_model
from asyncrl.run.views.live_view import LiveView


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """What to replay: the steps ``first`` to ``last`` of the run in folder ``run``.

    Attributes:
        overrides: changes of the recipe, in Hydra's grammar.
        without: rows that the changed steps are computed without.
        hook: ``module:function`` that sees every micro-batch; None for none.
        top: how many rows and tokens to tell of; 0 for none.
        gap: how many tokens to tell of where learner and engine differ most; 0 for none.
    """

    run: Path
    first: int
    last: int
    overrides: tuple[str, ...] = ()
    without: tuple[Row, ...] = ()
    hook: str | None = None
    top: int = 0
    gap: int = 0


class ReplayedStep(msgspec.Struct, frozen=True):
    """A step that was computed again.

    Attributes:
        batch: what it trained.
        made: what it made, as a run records it.
        recorded: what the run recorded of it; None if nothing.
        comparison: both compared; None for a step with changes.
        peak_bytes: the most memory of a rank so far.
        rows, tokens: what carried it, most first.
        gaps: tokens where learner and engine differ most, those first.
        gap_by: mean of |learner - engine|, and tokens, by what the tokens have in common.
        gap_cause: what that gap probably comes from; empty unless tokens with one were asked for.
        diverged: why it made no new weights, and the replay ends with it; empty if it did.
    """

    batch: Batch
    made: StepRecord
    recorded: StepRecord | None
    comparison: Comparison | None
    peak_bytes: int
    rows: tuple[CarriedRow, ...]
    tokens: tuple[CarriedToken, ...]
    gaps: tuple[CarriedToken, ...]
    gap_by: dict[str, tuple[float, int]]
    gap_cause: str
    diverged: str = ""


class Replay(msgspec.Struct, frozen=True):
    """A replay that has ended.

    Attributes:
        start: what it began from.
        steps: the steps that were asked for.
        changed: the same with the changes that were asked for; None without any.
        stopped: why the hook stopped it; None if it did not.
        model_path: the folder of the model, and so of its tokenizer.
        payload: the folders of the payload shards.
        remarks: what is different here from the run.
        looked_at: whether each row's own gradient was computed, for a hook or for ``top``.
    """

    start: Start
    steps: tuple[ReplayedStep, ...]
    changed: tuple[ReplayedStep, ...] | None
    stopped: Stopped | None
    model_path: Path
    payload: dict[int, Path]
    remarks: tuple[str, ...]
    looked_at: bool


def replay(request: Request, view: LiveView) -> Replay:
    """Do a replay.

    Raises:
        RecipeError: it cannot be done as asked; nothing was computed.
        ReplayFailed, ComponentFailed, DeadlineExceeded: it began and could not go on.
    """
    here = Path.cwd()
    if request.hook is not None:
        hook_of(request.hook)  # refused before anything is computed; the ranks load it themselves
    about = [override for override in request.overrides if is_about_computing(override)]
    differs = len(about) < len(request.overrides) or bool(request.without)
    folder = RunFolder.find(request.run)
    with in_launch_directory(folder), TemporaryDirectory(prefix="asyncrl-replay-") as made:
        view.phase(f"Reading {folder.path.name}")
        kept = KeptSteps.of(folder)
        start = kept.start_of(request.first, request.last)
        batches = [kept.batches[version] for version in sorted(kept.batches) if start.version <= version < request.last]
        asked = [batch for batch in batches if batch.version + 1 >= request.first]
        check_rows(asked, request.without)
        machine = Machine.here()
        planned = legs(kept, batches, about, machine)
        changes = _legs_with_changes(kept, asked, request, machine) if differs else []
        if differs:
            planned = _split(planned, request.first)
        model_path = asyncio.run(resolve_model(planned[0].recipe, view))
        group = _Group(request, kept, Path(made), model_path, here, view)
        steps = group.compute(planned, start.checkpoint, "")
        changed = None
        if differs and group.stopped is None:
            lead = start.checkpoint if start.version + 1 == request.first else group.saved[request.first - 1]
            changed = group.compute(changes, lead, " with the changes")
        remarks = _remarks(kept, planned, steps)
        looked_at = bool(request.top or request.gap) or request.hook is not None
        return Replay(start, steps, changed, group.stopped, model_path, kept.payload, tuple(remarks), looked_at)


def _legs_with_changes(kept: KeptSteps, asked: Sequence[Batch], request: Request, machine: Machine) -> list[Leg]:
    return legs(kept, [without(batch, request.without) for batch in asked], request.overrides, machine)


def _split(planned: Sequence[Leg], first: int) -> list[Leg]:
    """Let a leg begin at step ``first``."""
    found = []
    for leg in planned:
        before = tuple(batch for batch in leg.batches if batch.version + 1 < first)
        parts = [part for part in (before, leg.batches[len(before) :]) if part]
        found += [msgspec.structs.replace(leg, batches=part) for part in parts]
    return found


class _Group:
    """Computes legs, each on ranks of its own.

    Attributes:
        saved: the checkpoints that were written between legs, by version.
        stopped: why the hook has stopped the replay; None if it has not.
    """

    def __init__(self, request: Request, kept: KeptSteps, made: Path, model_path: Path, beside: Path, view: LiveView) -> None:
        self._request, self._kept, self._made, self._model_path = request, kept, made, model_path
        self._beside, self._view = beside, view
        self._groups = 0
        self.saved: dict[int, Path] = {}
        self.stopped: Stopped | None = None

    def compute(self, planned: Sequence[Leg], begin: Path | None, what: str) -> tuple[ReplayedStep, ...]:
        """Compute legs, beginning from the checkpoint ``begin``, or from the model; ``what`` follows the number of a step."""
        found: list[ReplayedStep] = []
        for number, leg in enumerate(planned):
            saved = None
            if number + 1 < len(planned):
                saved = checkpoints.path_of(self._folder(), version_after(leg))
                self.saved[version_after(leg)] = saved
            found += self._leg(leg, begin, saved, what)
            if self.stopped is not None or (found and found[-1].diverged):
                break
            begin = saved
        return tuple(found)

    def _folder(self) -> Path:
        self._groups += 1
        folder = self._made / str(self._groups)
        folder.mkdir()
        return folder

    def _leg(self, leg: Leg, begin: Path | None, saved: Path | None, what: str) -> list[ReplayedStep]:
        folder, request = self._folder(), self._request
        recipe = asyncio.run(with_local_reference(leg.recipe))
        job = Job(
            recipe=recipe,
            model_path=self._model_path,
            checkpoint=begin,
            batches=leg.batches,
            first=request.first,
            payload=self._kept.payload,
            threads=self._threads(leg),
            meeting=str(folder / "meeting"),
            code=Path.cwd(),
            beside=self._beside,
            saved={} if saved is None else {int(version_after(leg)): saved},
            hook=None if what else request.hook,
            top=0 if what else request.top,
            gap=0 if what else request.gap,
        )
        ranks = pluralize(recipe.learner.layout.ranks, "rank")
        self._view.phase(f"Starting {ranks}{what}")
        parts: dict[int, list[Replayed]] = {}
        found: list[ReplayedStep] = []

        def seen(rank: int, answer: Answer) -> None:
            if not isinstance(answer, Replayed):
                if rank == 0:
                    steps = pluralize(len(leg.batches), "step")
                    self._view.phase(f"Computing {steps}, up to {version_after(leg)}{what}")
                return
            of_step = parts.setdefault(answer.step, [])
            of_step.append(answer)
            if len(of_step) == recipe.learner.layout.ranks:
                batch = next(batch for batch in leg.batches if batch.version + 1 == answer.step)
                self._view.advance(answer.step / version_after(leg), f"step {answer.step}")
                if answer.step >= request.first:
                    found.append(self._step(leg, batch, of_step, changed=bool(what)))

        try:
            self.stopped = run_ranks(job, folder, seen)
        except (ReplayFailed, ComponentFailed) as error:
            if gone := self._gone(leg, begin):
                remedy = "a run that goes on removes what it no longer keeps; ask for a newer step"
                raise ReplayFailed(f"{gone}: {remedy}") from error
            raise
        return found

    def _gone(self, leg: Leg, begin: Path | None) -> str:
        """Say what a leg needs and has been removed since it was planned; empty if all is there."""
        if begin is not None and not begin.is_dir():
            return f"{begin} is no longer there"
        try:
            self._kept.check_payload([batch.version for batch in leg.batches], "--step")
        except RecipeError as error:
            return error.problem
        return ""

    def _threads(self, leg: Leg) -> int:
        """As many threads as in the run where the layout is the run's, because sums depend on them; else a share of the cores."""
        cores, ranks = Machine.here().cores, leg.recipe.learner.layout.ranks
        recorded = self._kept.record[leg.batches[0].version + 1]
        as_it_was = trained_by(self._kept, leg.batches[0].version + 1).learner.layout == leg.recipe.learner.layout
        if recorded is not None and recorded.hardware is not None and as_it_was:
            return recorded.hardware.threads
        return max(1, cores // ranks)

    def _step(self, leg: Leg, batch: Batch, of_ranks: Sequence[Replayed], *, changed: bool) -> ReplayedStep:
        step, top = batch.version + 1, self._request.top
        made, recorded = record_of(of_ranks), self._kept.record[step]
        comparison, diverged = None, next((each.diverged for each in of_ranks if each.diverged), "")
        if not changed and not diverged:
            exact = recorded is not None and recorded.hardware == made.hardware and _same_arithmetic(self._kept, leg.recipe, step)
            dtypes = {leg.recipe.learner.dtype, trained_by(self._kept, step).learner.dtype}
            comparison = compare(recorded, made, exact=exact, dtypes=dtypes)
        return ReplayedStep(
            batch=batch,
            made=made,
            recorded=recorded,
            comparison=comparison,
            peak_bytes=max(each.peak_bytes for each in of_ranks),
            rows=tuple(most_first([row for each in of_ranks for row in each.rows], top, odd_rewards(batch))),
            tokens=tuple(nlargest(top, [token for each in of_ranks for token in each.tokens], key=_pull)),
            gaps=tuple(nlargest(self._request.gap, [token for each in of_ranks for token in each.gaps], key=_gap)),
            gap_by=_means(of_ranks),
            gap_cause=self._gap_cause(leg, made) if self._request.gap and not diverged else "",
            diverged=diverged,
        )

    def _gap_cause(self, leg: Leg, made: StepRecord) -> str:
        """What the gap of a step probably comes from: engines were the run's, and the learner is this one."""
        of_run = trained_by(self._kept, made.step)
        both = msgspec.structs.replace(leg.recipe, generators=of_run.generators)
        return str(likely_cause(gap_evidence(made.readings), gap_sides(both, routed=MOST_LOAD.name in made.readings)))


def _gap(token: CarriedToken) -> float:
    return or_infinite(abs(token.learner - token.engine))


def _pull(token: CarriedToken) -> float:
    return or_infinite(token.pull)


def _means(of_ranks: Sequence[Replayed]) -> dict[str, tuple[float, int]]:
    sums: dict[str, tuple[float, int]] = {}
    for what, (total, count) in (item for each in of_ranks for item in each.gap_by.items()):
        before, tokens = sums.get(what, (0.0, 0))
        sums[what] = before + total, tokens + count
    return {what: (total / count, count) for what, (total, count) in sums.items()}


def _same_arithmetic(kept: KeptSteps, recipe: Recipe, step: int) -> bool:
    """Whether a recipe computes a step in the very order in which the run computed it."""
    own = trained_by(kept, step).learner
    return msgspec.structs.replace(recipe.learner, placement=own.placement) == own


def _remarks(kept: KeptSteps, planned: Sequence[Leg], steps: Sequence[ReplayedStep]) -> list[str]:
    remarks = []
    last = planned[-1]
    own = trained_by(kept, version_after(last)).learner
    if own.layout != last.recipe.learner.layout:
        remarks.append(f"the run had {own.layout}; here it is {last.recipe.learner.layout}")
    if own.fp8 != last.recipe.learner.fp8:
        remarks.append(f"the run multiplied in fp8 ({own.fp8}), which this machine cannot")
    if steps and steps[-1].recorded is not None:
        recorded, made = steps[-1].recorded.hardware, steps[-1].made.hardware
        if recorded != made:
            remarks.append(f"the run computed on {recorded}; here it is {made}")
    return remarks
