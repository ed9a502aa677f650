"""Trains from the trajectories that runs have recorded, without generating any: the learner's ranks alone, as in a replay.

What always holds: what cannot be trained rightly is refused before anything starts, and what is only doubtful is said. The run's
folder has the recipe, the record of its steps and checkpoints, from which its versions are exported and evaluated.
"""

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from asyncrl.core.errors import AsyncRLError, RecipeError
from asyncrl.core.ids import PolicyVersion
from asyncrl.core.recipe.schema import Recipe
from asyncrl.core.text import pluralize
from asyncrl.learners.checkpointing import checkpoints
from asyncrl.learners.metrics import GRAD_NORM, POLICY_LOSS
from asyncrl.replay.file_groups import FileGroups, check_greedy, check_sampling, is_file_of_episodes, read_files
from asyncrl.replay.job import Answer, Job, Replayed, record_of
from asyncrl.replay.kept_steps import KeptSteps
from asyncrl.replay.rank_group import run_ranks
from asyncrl.replay.recorded_groups import Best, Recorded
from asyncrl.replay.replay_plan import fitted, trained_by
from asyncrl.run.folder.config_yaml import resolved_yaml
from asyncrl.run.folder.run_folder import RunFolder, in_launch_directory
from asyncrl.run.folder.step_log import Launched, StepLog
from asyncrl.run.measures.progress import training_phase
from asyncrl.run.measures.summary import Status, Summary
from asyncrl.run.models.model_shape import TINY
from asyncrl.run.models.model_sources import with_local_reference
from asyncrl.run.nodes.machine import Machine
from asyncrl.run.resolve_model import resolve_model
from asyncrl.run.tiny.lessons import players_of
from asyncrl.run.tracking.tracker import Tracker
from asyncrl.run.views.live_view import LiveView

TRACKED_S = 60.0
"""How long MLflow may take to store the last records."""


class Offline(msgspec.Struct, frozen=True, kw_only=True):
    """What to train from: the steps ``first`` to ``last`` (None for all later ones) of ``runs``, folders of runs or files of
    episodes, and which of their episodes."""

    recipe: Recipe
    runs: tuple[Path, ...]
    first: int = 1
    last: int | None = None
    best: Best = Best()

    @property
    def files(self) -> tuple[Path, ...]:
        """The files of episodes among what is trained from."""
        return tuple(path for path in self.runs if is_file_of_episodes(path))


def plan_offline(offline: Offline, made: Path, view: LiveView | None = None) -> tuple[Recorded, tuple[str, ...]]:
    """Gather what is to be trained; return it, and remarks on what is doubtful.

    Args:
        made: a folder of the caller's, for the episodes of files. It must stay until they are trained.
        view: shows how far a model is that files need to be read, and that is made or fetched first.

    Raises:
        RecipeError: it cannot be trained rightly.
    """
    recipe = offline.recipe
    folders = [RunFolder.find(path) for path in offline.runs if path not in offline.files]
    _check_once([folder.path for folder in folders], offline.files)
    runs = [KeptSteps.of(folder) for folder in folders]
    for run in runs:
        known: dict[str, Recipe] = {}
        for version in run.batches_of(offline.first, offline.last):
            trained_by(run, version + 1, known=known)
        for each in known.values():  # a resume may have changed the recipe
            _check_fits(recipe, each, run)
    recorded, remarks = Recorded.of(runs, offline.first, offline.last), list[str]()
    if offline.files:
        assert view is not None
        model, shard = asyncio.run(resolve_model(recipe, view)), len(recorded.payload)
        files = read_files(offline.files, recipe, model, (offline.first, offline.last), made, shard)
        recorded = Recorded((*recorded.groups, *files.groups), {**recorded.payload, shard: made})
        remarks += _remarks_on_files(offline, files)
    chosen = recorded.chosen(recipe, offline.best)
    return chosen, (*remarks, *_remarks(recipe, chosen))


def _check_once(folders: Sequence[Path], files: Sequence[Path]) -> None:
    """Refuse a run or file that is named twice, or a run beside files of its own episodes: they would be trained twice."""
    seen: set[Path] = set()
    for path in (each.resolve() for each in (*folders, *files)):
        if path in seen:
            raise RecipeError("--from", f"{path} is named twice, and each of its episodes would be trained twice", "name it once")
        seen.add(path)
    runs = [folder.resolve() for folder in folders]
    for file in files:
        if of := next((folder for folder in runs if file.resolve().is_relative_to(folder)), None):
            problem = f"{file} has episodes of {of}, which is named too, so that they would be trained twice"
            raise RecipeError("--from", problem, "name the run or its files, not both")


def _check_fits(recipe: Recipe, recorded: Recipe, run: KeptSteps) -> None:
    """Refuse a run whose episodes the recipe would train on wrong numbers."""
    where, algorithm = run.folder.path, recipe.algorithm
    check_sampling(recipe, [recorded.sampling.sampling], where)
    if recorded.algorithm.reward_names != algorithm.reward_names:
        problem = (
            f"compares the rewards {list(algorithm.reward_names)}, and {where} recorded {list(recorded.algorithm.reward_names)}"
        )
        raise RecipeError("algorithm.advantage.rewards", problem, "name those that were recorded")
    if algorithm.teacher is not None and recorded.algorithm.teacher is None:
        problem = f"needs a teacher's log-probabilities, and {where} had no teacher"
        raise RecipeError("algorithm.teacher", problem, "train from a run that had one, or leave it out")
    check_greedy(recipe, recorded.algorithm.greedy_sample is not None, where)
    with in_launch_directory(run.folder):
        theirs = _model_of(recorded)
    ours = _model_of(recipe)
    if ours != theirs and not _same_tokenizer(ours, theirs, run.folder):
        problem = (
            f"is another model than that of {where} ({recorded.model.path}), and no equal tokenizer.json shows that ids agree"
        )
        remedy = "train a model with the tokenizer of the episodes"
        if recipe.model.path == TINY:
            remedy += f"; the tiny one has that of its environment and its seed, which was {recorded.seed} there"
        raise RecipeError("model.path", problem, remedy)


def _model_of(recipe: Recipe) -> Path | str:
    """Tell a recipe's model from others: the absolute path of its folder, its id on the hub, or what a tiny one is made from."""
    path = recipe.model.path
    if path == TINY:
        environments = [(member, each.environment.name, each.environment.options) for member, each in players_of(recipe).items()]
        return f"{TINY}, of seed {recipe.seed} and {environments}"
    return Path(path).resolve() if Path(path).is_dir() else path


def _same_tokenizer(ours: Path | str, theirs: Path | str, run: RunFolder) -> bool:
    def tokenizer(model: Path | str) -> bytes | None:
        file = Path(model, "tokenizer.json") if isinstance(model, Path) else None
        return file.read_bytes() if file is not None and file.is_file() else None

    own = tokenizer(ours)
    return own is not None and own in (tokenizer(theirs), tokenizer(run.model))


def _remarks_on_files(offline: Offline, files: FileGroups) -> Iterator[str]:
    if not files.with_logprobs:
        yield (
            "conversations have no log-probabilities, so that mismatch/*, kl/behaviour_* and correction/* of their steps say "
            "nothing"
        )
    if len(files.groups) > files.kept and (offline.first, offline.last) != (1, None):
        yield "--steps says nothing of conversations, which have no steps: all of them are trained"
    if files.lacking and (offline.best.count is not None or not offline.recipe.algorithm.loss.imitates):
        yield (
            f"{files.lacking} of {files.kept} groups of kept trajectories have fewer episodes than batch.group_size "
            f"{offline.recipe.batch.group_size}: unless they were sampled so, a part of each is missing, and the rest is "
            "compared with itself; tracking.trajectories.keep=all keeps whole groups"
        )


def _remarks(recipe: Recipe, recorded: Recorded) -> Iterator[str]:
    algorithm, size = recipe.algorithm, recipe.batch.groups_per_step
    if not algorithm.uses_behaviour and not algorithm.loss.imitates:
        yield (
            "nothing corrects for other policies having sampled the episodes: algorithm.correction has neither a weight nor the "
            "behaviour policy as anchor (docs/how-to/replay.md)"
        )
    passes = recipe.steps * size / len(recorded.groups)
    if passes > 1:
        yield f"the {len(recorded.groups)} recorded groups are trained {passes:.1f} times, because steps is {recipe.steps}"
    if algorithm.loss.imitates and min(episode.reward for group in recorded.groups for episode in group) <= 0:
        yield "cross_entropy imitates every episode, and some have no reward: --least-reward leaves these out"


def train_offline(offline: Offline, recorded: Recorded, folder: RunFolder, view: LiveView) -> list[PolicyVersion]:
    """Train the steps of the recipe, all or from the newest checkpoint in ``folder`` on.

    Returns:
        the versions that checkpoints are written of, which are to be evaluated.

    Raises:
        RecipeError: another process trains there.
        ReplayFailed, ComponentFailed, DeadlineExceeded: it could not go on; what was trained is recorded in ``folder``.
    """
    with folder.driven():
        return _trained(offline, recorded, folder, view)


def _trained(offline: Offline, recorded: Recorded, folder: RunFolder, view: LiveView) -> list[PolicyVersion]:
    own = offline.recipe
    machine = Machine.here()
    recipe = asyncio.run(with_local_reference(fitted(own, machine, ())))
    model_path = asyncio.run(resolve_model(recipe, view))
    log, layout = StepLog(folder.steps), recipe.learner.layout
    tracker = Tracker(own, folder)
    tracker.start()
    versions = [PolicyVersion(step) for step in range(1, own.steps + 1) if step % own.evaluation.every == 0 or step == own.steps]
    folder.checkpoints.mkdir(exist_ok=True)
    begin, checkpoint = checkpoints.newest(folder.checkpoints) or (PolicyVersion(0), None)
    batches = tuple(batch for batch in recorded.batches(own) if batch.version >= begin)
    log.append(Launched(begin, resolved_yaml(own)))
    parts: dict[int, list[Replayed]] = {}
    view.phase(f"Starting {pluralize(layout.ranks, 'rank')}")

    def seen(rank: int, answer: Answer) -> None:
        if not isinstance(answer, Replayed):
            if rank == 0:
                view.phase(training_phase(begin, own.steps))
            return
        of_step = parts.setdefault(answer.step, [])
        of_step.append(answer)
        if len(of_step) == layout.ranks:
            made = record_of(of_step)
            log.append(made)
            tracker.log(made.step, made.readings)
            loss, norm = (made.readings.get(metric.name, 0.0) for metric in (POLICY_LOSS, GRAD_NORM))
            view.advance(answer.step / own.steps, f"step {answer.step}, loss {loss:.4g}, gradient norm {norm:.3g}")

    with TemporaryDirectory(prefix="asyncrl-offline-") as made:
        job = Job(
            recipe=recipe,
            model_path=model_path,
            checkpoint=checkpoint,
            batches=batches,
            first=own.steps + 1,
            payload=recorded.payload,
            threads=max(1, machine.cores // layout.ranks),
            meeting=str(Path(made, "meeting")),
            code=Path.cwd(),
            beside=Path.cwd(),
            saved={int(v): checkpoints.path_of(folder.checkpoints, v) for v in versions if v > begin},
            renamed=True,
        )
        status, reason = Status.FAILED, ""
        try:
            if batches:
                run_ranks(job, Path(made), seen)
            status = Status.COMPLETED
        except KeyboardInterrupt as interrupt:
            status, reason = Status.INTERRUPTED, str(interrupt)
            raise
        except AsyncRLError as error:
            reason = str(error)
            raise
        finally:
            steps = max((step for step, each in parts.items() if len(each) == layout.ranks), default=begin)
            Summary(status=status, reason=reason, steps=steps).recorded(folder.summary)
            tracker.finish(status, TRACKED_S)
    return versions
