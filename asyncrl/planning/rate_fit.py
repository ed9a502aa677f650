"""Fits rates to a run: from what each training step took, and from the episodes that it kept.

On a machine whose cores engines and learner share, processor time is what a part costs whoever else is at work, so that is what
is fitted; on devices of their own, it is seconds. What always holds: a rate says where it comes from, how far the fit misses what
was measured, and with which sizes it was measured.
"""

from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np

from asyncrl.core.errors import RecipeError
from asyncrl.core.measures.step_moments import StepMoments
from asyncrl.core.measures.time_split import TimeSplit
from asyncrl.core.recipe.schema import Recipe
from asyncrl.core.text import pluralize
from asyncrl.episodes.reader import EpisodeReader
from asyncrl.episodes.schema import Kind
from asyncrl.generators.vllm.engine_arguments import CPU_BLOCK_TOKENS
from asyncrl.planning.hardware import Hardware
from asyncrl.planning.kept_episodes import MOST_EPISODES, Kept, read_kept, required
from asyncrl.run.folder.run_folder import RunFolder
from asyncrl.run.measures.measure_file import StepMeasure, read
from asyncrl.run.models.model_shape import ELEMENT_BYTES, read_shape
from asyncrl.run.recipe.compose import compose
from asyncrl.simulation.rates import (
    NOTHING,
    EngineRates,
    FailureRates,
    LearnerRates,
    MachineRates,
    PublicationRates,
    Rate,
    Rates,
)

LEAST_STEPS = 4
"""Training steps that a run must have done."""
GPU_BLOCK_TOKENS = 16
LOWER_PRIORITY = 1.25**4
"""The weight of other processes beside that of an engine that yields: 1.25 for each step of niceness, as in Linux."""


class Basis(msgspec.Struct, frozen=True):
    """What predictions stand on.

    Attributes:
        name: the run, file or probe that it comes from.
        device: what computed: ``cpu``, or the name of a GPU.
        rates: how fast the parts are; None where ``hardware`` says it for each recipe.
        training: the episodes to draw from.
        evaluation: those of evaluations; None if none were kept.
        recipe: the recipe of the run that rates were fitted to; None if there was none.
        played_by: the recipe by which the episodes were played; None if a file says what they are like.
        measured: the steps of the run that count; empty if there was no run.
        notes: what of the run was not used, and why.
    """

    name: str
    device: str
    rates: Rates | None
    training: Kept
    evaluation: Kept | None = None
    recipe: Recipe | None = None
    played_by: Recipe | None = None
    measured: tuple[StepMeasure, ...] = ()
    hardware: Hardware | None = None
    notes: tuple[str, ...] = ()
    failures: FailureRates = FailureRates()

    def rates_of(self, recipe: Recipe) -> Rates:
        """Return the rates for the layout of ``recipe``: on cores, each rank keeps as many busy as those that were measured.

        Raises:
            RecipeError: the model's shape is needed and cannot be read.
        """
        if self.hardware is not None:
            found = self.hardware.rates(read_shape(recipe.model.path), recipe, self.training.episodes.mean_length)
            return msgspec.structs.replace(found, failures=self.failures)
        assert self.rates is not None
        learner, machine = self.rates.learner, self.rates.machine
        if not learner.cores.value:
            return self.rates
        if self.recipe is None:  # by hand: the machine's weight was given too
            each, ranks = learner.cores.value / learner.ranks.value, recipe.learner.data_parallel
        else:
            each, ranks = learner.cores.value / self.recipe.learner.layout.ranks, recipe.learner.layout.ranks
            machine = msgspec.structs.replace(machine, weight=learner_weight(ranks, machine.cores.value))
        learner = msgspec.structs.replace(learner, cores=Rate(each * ranks, f"{each:g} for each rank"))
        return msgspec.structs.replace(self.rates, learner=learner, machine=machine)


def fit_run(path: Path, since: int = 0, least_episodes: int = MOST_EPISODES) -> Basis:
    """Fit rates to a run, which may still go on.

    Args:
        since: the first training step that is looked at.
        least_episodes: if fewer were kept since then, the newest that many are drawn from.

    Raises:
        RecipeError: there is no run, it has done too few training steps, or it has kept no episodes.
    """
    folder = RunFolder.find(path)
    recipe = compose(str(folder.recipe))
    name, every = folder.path.name, read(folder.measures)
    steps = on_last_machine(every)
    usual = [step for step in usual_steps(steps, recipe) if step.step >= since]
    elsewhere = len(every) - len(steps)
    notes: tuple[str, ...] = ()
    if elsewhere:
        here = f"{steps[-1].device} with {pluralize(steps[-1].cores, 'core')}"
        notes = (
            f"{pluralize(elsewhere, 'training step')} of run {name} ran on another machine than the last ({here}): left out",
        )
    if len(usual) < LEAST_STEPS:
        raise RecipeError(
            "--from",
            f"run {name} has {len(usual)} training steps from which rates can be fitted, and {LEAST_STEPS} are needed",
            "; ".join((*notes, "let it go on for longer; the first steps, in which everything fills, and the last do not count")),
        )
    reader = EpisodeReader(folder.trajectories)
    training = required(read_kept(reader, Kind.TRAIN, since, least_episodes), name)
    evaluation = read_kept(reader, Kind.EVALUATION)
    rates = fit(usual, recipe, training, name)
    return Basis(name, usual[-1].device, rates, training, evaluation, recipe, recipe, tuple(usual), notes=notes)


def on_last_machine(steps: Sequence[StepMeasure]) -> list[StepMeasure]:
    """The steps that ran on the machine of the last one, as far as device and cores tell: a resume may be elsewhere."""
    last = (steps[-1].device, steps[-1].cores)
    since = max((place + 1 for place, step in enumerate(steps) if (step.device, step.cores) != last), default=0)
    return list(steps[since:])


def usual_steps(steps: Sequence[StepMeasure], recipe: Recipe) -> list[StepMeasure]:
    """The steps of a run that say how fast it goes on: not those in which it fills, and not those near its end, before which no
    more tickets are issued."""
    first = steps[0].step + 2
    last = recipe.steps - max(step.depth for step in steps) - 1
    return [step for step in steps if first <= step.step <= last]


def fit(steps: Sequence[StepMeasure], recipe: Recipe, training: Kept, run: str) -> Rates:
    """Fit rates to the training steps of one run."""
    total = sum((step.time for step in steps), TimeSplit())
    on_cores = steps[-1].device == "cpu"
    engine = _engine(total, recipe, training, run, on_cores=on_cores)
    learner = _learner(steps, total, recipe, run, on_cores=on_cores)
    return Rates(
        engine=engine,
        learner=learner,
        publication=_publication(steps, recipe, run),
        machine=_machine(steps, total, recipe, run) if on_cores else MachineRates(),
        failures=_failures(steps, run),
    )


def _engine(total: TimeSplit, recipe: Recipe, training: Kept, run: str, *, on_cores: bool) -> EngineRates:
    time, moments = total.generators, total.generators.steps
    of_what = "cpu" if on_cores else "seconds"
    fitted, error = least_squares(moments, ("steps", "prompts", "sampled", "context"), of_what)
    count = max(1.0, moments.total("steps"))
    requests, spread = moments.total("sampled") / count, moments.product("sampled", "sampled") / count
    deviation = max(0.0, spread - requests**2) ** 0.5
    many = (max(1.0, requests - 2 * deviation), requests + 2 * deviation)
    kind = "processor time" if on_cores else "time"
    source = f"{kind} of {count:,.0f} engine steps of {run}"
    turns = total.trajectories * training.turns
    outside = max(
        0.0, (time.episodes - time.requests) / max(1.0, turns) - training.environment_s - training.reset_s / training.turns
    )
    beside = time.front_end_cpu / max(1e-9, time.engine_cpu)
    return EngineRates(
        step=Rate(fitted["steps"], source, error),
        request=Rate(fitted["sampled"], source, error, many),
        prompt_token=Rate(fitted["prompts"], source, error),
        context_token=Rate(fitted["context"], source, error),
        cache_tokens=_cache_tokens(recipe) if on_cores else NOTHING,
        block_tokens=Rate(CPU_BLOCK_TOKENS if on_cores else GPU_BLOCK_TOKENS, "vLLM's block size here"),
        turn=Rate(outside, f"episodes of {run}: time outside engines that no environment took"),
        cores=Rate(1 + beside, f"processor time of engines and front ends of {run}") if on_cores else NOTHING,
    )


def least_squares(moments: StepMoments, variables: Sequence[str], of_what: str) -> tuple[dict[str, float], float]:
    """Fit what steps took to what they computed; no part may be negative.

    A variable whose part came out negative is left out, and the others are fitted again.

    Returns:
        the part of each variable, and the relative residual: root of the mean squared error over the mean.
    """
    kept = list(variables)
    parts: dict[str, float] = dict.fromkeys(variables, 0.0)
    while kept:
        scale = np.array([max(1e-12, moments.product(each, each)) ** 0.5 for each in kept])
        matrix = np.array([[moments.product(one, other) for other in kept] for one in kept]) / np.outer(scale, scale)
        right = np.array([moments.product(each, of_what) for each in kept]) / scale
        solved = np.linalg.lstsq(matrix, right, rcond=1e-9)[0] / scale
        lowest = int(np.argmin(solved))
        if solved[lowest] >= 0 or len(kept) == 1:
            parts |= {name: max(0.0, float(value)) for name, value in zip(kept, solved, strict=True)}
            break
        kept.pop(lowest)
    squares, count = moments.product(of_what, of_what), max(1.0, moments.total("steps"))
    explained = sum(
        parts[one] * (2 * moments.product(one, of_what) - sum(parts[other] * moments.product(one, other) for other in variables))
        for one in variables
    )
    mean = moments.total(of_what) / count
    return parts, float((max(0.0, squares - explained) / count) ** 0.5 / mean) if mean > 0 else 0.0


def _cache_tokens(recipe: Recipe) -> Rate:
    try:
        shape = read_shape(recipe.model.path)
    except RecipeError:
        return NOTHING
    generators = recipe.generators
    tokens = (generators.kv_cache_mb << 20) // shape.cache_bytes(ELEMENT_BYTES[generators.dtype])
    return Rate(float(tokens), f"generators.kv_cache_mb {generators.kv_cache_mb}, and the model's heads")


def _learner(steps: Sequence[StepMeasure], total: TimeSplit, recipe: Recipe, run: str, *, on_cores: bool) -> LearnerRates:
    time, count, ranks = total.learner, len(steps), recipe.learner.layout.ranks
    data_parallel = recipe.learner.data_parallel
    cores = 0.0
    solo = 1.0
    if on_cores and time.cpu > 0:
        cores = float(ranks)
        solo = min(1.0, time.cpu / ranks / time.training)
    tokens = sum(step.computed_tokens for step in steps) / data_parallel
    rows = sum(step.rows for step in steps) / data_parallel
    token = (time.forward + time.backward) * solo / max(1.0, tokens)
    row = time.data * solo / max(1.0, rows)
    fixed = max(0.0, time.training - time.forward - time.backward - time.data) * solo / count
    seconds = np.array([step.time.learner.training for step in steps])
    foreseen = np.array([fixed + (step.computed_tokens * token + step.rows * row) / data_parallel for step in steps]) / solo
    error = float(np.std(seconds - foreseen) / max(1e-9, seconds.mean()))
    sizes = [step.computed_tokens / data_parallel for step in steps]
    spent = time.waiting + time.training + time.writing + time.delivering + time.checkpointing
    kind = "processor time of ranks" if on_cores else "time of ranks"
    source = f"{kind} in {count} training steps of {run}"
    return LearnerRates(
        step=Rate(fixed, f"{source}: optimizer, and calls", error),
        token=Rate(token, f"{source}: forward and backward passes", error, (min(sizes), max(sizes))),
        row=Rate(row, f"{source}: fetching and packing", error),
        between=Rate(max(0.0, total.seconds - spent) / count, f"{count} training steps of {run}: what nothing else accounts for"),
        cores=Rate(cores, f"{ranks} ranks") if cores else NOTHING,
        ranks=Rate(data_parallel, f"learner.data_parallel of {run}"),
    )


def _publication(steps: Sequence[StepMeasure], recipe: Recipe, run: str) -> PublicationRates:
    count = len(steps)
    source = f"{count} publications of {run}"
    delivered = [step.delivery_s for step in steps if step.delivery_s is not None]
    pause = _mean([step.pause_s for step in steps])
    write = _mean([step.time.learner.writing for step in steps])
    blocked = sum(step.time.learner.checkpointing for step in steps)
    checkpoints = sum(step.step % recipe.checkpoint.every == 0 for step in steps)
    return PublicationRates(
        write=Rate(write, source, _spread([step.time.learner.writing for step in steps])),
        move=Rate(max(0.0, _mean(delivered) - pause), source, _spread(delivered)),
        pause=Rate(pause, source, _spread([step.pause_s for step in steps])),
        checkpoint=Rate(blocked / checkpoints, f"{checkpoints} checkpoints of {run}") if checkpoints else NOTHING,
    )


def _machine(steps: Sequence[StepMeasure], total: TimeSplit, recipe: Recipe, run: str) -> MachineRates:
    cores = steps[-1].cores
    ours = total.generators.engine_cpu + total.generators.front_end_cpu + total.learner.cpu
    others = max(0.0, total.cores * cores - ours) / total.seconds
    return MachineRates(
        cores=Rate(cores, "cores that the run's driver might use"),
        others=Rate(others, f"what else was busy during {run}: its driver and buffer, and other programs"),
        weight=learner_weight(recipe.learner.layout.ranks, cores),
    )


def learner_weight(ranks: int, cores: float) -> Rate:
    """The learner's weight beside an engine's, where both share the cores of a machine."""
    if ranks < cores:
        return Rate(LOWER_PRIORITY, "engines yield to a learner with fewer ranks than cores")
    return Rate(1.0, "engines do not yield to a learner with a rank for each core")


def _failures(steps: Sequence[StepMeasure], run: str) -> FailureRates:
    complete, filtered = sum(step.complete for step in steps), sum(step.filtered for step in steps)
    return FailureRates(filtered=Rate(filtered / complete, f"{complete} groups of {run}") if complete and filtered else NOTHING)


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if values else 0.0


def _spread(values: Sequence[float]) -> float | None:
    mean = _mean(values)
    return float(np.std(values) / mean) if mean > 0 else None
