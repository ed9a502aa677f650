"""Predicts a recipe: several modelled runs, and an interval for each figure.

What always holds: a figure's interval is that of its mean over seeds, widened by how far the fits may be off; how far the model
is from a run is no part of it (:data:`MEDIAN_ERROR`). A prediction says where the recipe lies outside of what was measured.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from statistics import fmean, stdev

import msgspec

from asyncrl.core.errors import RecipeError
from asyncrl.core.measures.time_split import TimeSplit
from asyncrl.core.measures.units import memory, percent
from asyncrl.core.recipe.schema import Recipe
from asyncrl.core.recipe.tasks import GeneratedTasksConfig
from asyncrl.planning.episode_limits import limited
from asyncrl.planning.rate_fit import Basis
from asyncrl.run.measures.bottleneck import find_bottleneck
from asyncrl.run.models.model_shape import read_shape
from asyncrl.run.nodes.process_memory import beside_learner, gpu_bytes, processes_of
from asyncrl.simulation.episodes import Held
from asyncrl.simulation.modelled_run import ModelledRun
from asyncrl.simulation.outcome import Outcome
from asyncrl.simulation.rates import Rates

SEEDS, STEPS = 3, 16
"""Modelled runs of a prediction, and training steps of each that count."""
_STUDENT = {2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78, 6: 2.57, 7: 2.45, 8: 2.36, 9: 2.31, 10: 2.26}
"""Student's t for an interval of 95 % of so many runs; that of the most is a little large for more."""
MEDIAN_ERROR, WORST_ERROR = 0.044, 0.43
"""How far the throughput of ten plans was from that of the runs that followed: `asyncrl bench plan`, docs/benchmarks/speed.md."""
INTERVALS = (
    f"Intervals are of the modelled mean. Plans that runs checked were off by {100 * MEDIAN_ERROR:.1f} % in the median, and by "
    f"{percent(WORST_ERROR)} at worst."
)
_FITTED_STEPS = 16
"""Training steps of a fit, where a file does not say how many they were."""
_TWO_SIDED = 1.96
"""Standard errors of a mean to either end of its interval of 95 %."""
MARGIN = 1.25
"""What is more than so many times as large as what was measured is extrapolated."""


class Figure(msgspec.Struct, frozen=True):
    """A predicted figure: its mean over seeds, and the ends of the interval of 95 % of that mean."""

    mean: float
    low: float
    high: float


class Prediction(msgspec.Struct, frozen=True, kw_only=True):
    """What a recipe would do.

    Attributes:
        name: what sets it apart from others of the same table: its changed keys, or the recipe's name.
        overrides: the changes of the recipe, in Hydra's grammar.
        gpus: how many it takes; 0 on a CPU.
        trajectories_per_s, trained_tokens_per_s, step_s: what it brings.
        idle_generators, idle_learner: shares in [0, 1].
        staleness_mean: of trained tokens; ``histogram`` are their shares by staleness, and ``staleness_max`` is the largest.
        masked, dropped: share of trained episodes' sampled tokens that are too old, and of groups that are given up.
        length_bias: mean length of trained episodes over that of issued ones.
        depth: the pipeline depth at the end.
        memory: bytes of each part, by name.
        bottleneck: the sentence of a run.
        start_s: until the first training step.
        notes: where the recipe lies outside of what was measured.
    """

    name: str
    overrides: tuple[str, ...]
    gpus: int
    trajectories_per_s: Figure
    trained_tokens_per_s: Figure
    step_s: Figure
    idle_generators: Figure
    idle_learner: Figure
    staleness_mean: Figure
    staleness_max: int
    histogram: dict[int, float]
    masked: Figure
    dropped: Figure
    length_bias: Figure
    depth: float
    memory: dict[str, int]
    bottleneck: str
    start_s: float
    notes: tuple[str, ...]


def predict(
    recipe: Recipe,
    basis: Basis,
    *,
    name: str = "",
    overrides: Sequence[str] = (),
    seeds: int = SEEDS,
    steps: int = STEPS,
) -> Prediction:
    """Model ``recipe`` with the rates and episodes of ``basis``.

    Raises:
        RecipeError: an episode is longer than a micro-batch of the recipe may be, or the model does not fit into an engine or a
            rank of the learner.
    """
    basis = limited(basis, recipe)
    rates = basis.rates_of(recipe)
    if basis.hardware is not None:
        _check_memory(recipe, rates, basis.device, int(basis.hardware.memory_bytes.value))
    count = _evaluated(recipe, basis)
    held = Held(None if basis.evaluation is None else basis.evaluation.episodes, count)
    outcomes = [
        ModelledRun(recipe, rates, basis.training.episodes, seed=seed, steps=steps, held=held).run() for seed in range(seeds)
    ]
    speed = _speed_error(rates, len(basis.measured) or _FITTED_STEPS)
    total = sum((outcome.time for outcome in outcomes), TimeSplit())
    depth = fmean(outcome.depth for outcome in outcomes)
    tokens = sum(outcome.staleness.total() for outcome in outcomes)
    ages = sorted({age for outcome in outcomes for age in outcome.staleness})

    def figure(read: Callable[[Outcome], float], error: float = 0.0) -> Figure:
        return _figure([read(outcome) for outcome in outcomes], error)

    def share(read: Callable[[Outcome], float]) -> Figure:
        found = figure(read)
        return msgspec.structs.replace(found, high=min(1.0, found.high))

    return Prediction(
        name=name or recipe.name,
        overrides=tuple(overrides),
        gpus=gpus_of(recipe, basis),
        trajectories_per_s=figure(lambda o: o.trajectories_per_s, speed),
        trained_tokens_per_s=figure(lambda o: o.trained_tokens_per_s, speed),
        step_s=figure(lambda o: o.step_mean, speed),
        idle_generators=share(lambda o: o.time.idle.generators),
        idle_learner=share(lambda o: o.time.idle.learner),
        staleness_mean=figure(lambda o: o.staleness_mean),
        staleness_max=max(outcome.staleness_max for outcome in outcomes),
        histogram={age: sum(outcome.staleness[age] for outcome in outcomes) / max(1, tokens) for age in ages},
        masked=share(lambda o: o.masked_share),
        dropped=share(lambda o: o.expired_share),
        length_bias=figure(lambda o: o.length_bias),
        depth=depth,
        memory=_memory(recipe),
        bottleneck=find_bottleneck(total, recipe, round(depth), sum(outcome.steps for outcome in outcomes)).sentence,
        start_s=outcomes[0].start_s,
        notes=tuple(_notes(recipe, basis, rates, outcomes)),
    )


def _check_memory(recipe: Recipe, rates: Rates, device: str, gpu_memory: int) -> None:
    """Refuse a recipe whose engines or learner do not fit into the memory of their GPUs."""
    if rates.engine.cache_tokens.value <= 1:
        problem = f"the model's weights leave no room for a key-value cache on {recipe.generators.engine_workers} x {device}"
        raise RecipeError("generators.tensor_parallel", problem, "raise it, or generators.gpu_memory_share")
    shape = read_shape(recipe.model.path)
    learner, engine = gpu_bytes(recipe.learner, shape), beside_learner(recipe, shape, gpu_memory)
    if learner + engine > gpu_memory:
        beside = f" and {memory(engine)} for the engine beside it" if engine else ""
        problem = f"a rank needs about {memory(learner)}{beside}, and {device} has {memory(gpu_memory)}"
        remedy = (
            "use more ranks (learner.tensor_parallel, learner.pipeline_parallel, learner.data_parallel), set "
            "learner.recompute=full, lower learner.micro_batch_tokens, or train adapters (learner.lora)"
        )
        raise RecipeError("learner", problem, remedy)


def gpus_of(recipe: Recipe, basis: Basis) -> int:
    """How many GPUs a recipe takes."""
    return 0 if basis.device == "cpu" else gpus_taken(recipe)


def gpus_taken(recipe: Recipe) -> int:
    """How many GPUs learner and engines of a recipe take on a machine that has some."""
    engines = sum(pool.count * pool.engine_workers for pool in recipe.generators.by_pool.values())
    return max(engines, recipe.learner.layout.ranks) if recipe.learner.gpu == "shared" else engines + recipe.learner.layout.ranks


def _evaluated(recipe: Recipe, basis: Basis) -> int:
    if recipe.evaluation.every >= recipe.steps:
        return 0
    tasks = recipe.tasks
    if isinstance(tasks, GeneratedTasksConfig):
        return tasks.evaluation * (recipe.evaluation.samples or 1)
    return 0 if basis.evaluation is None else basis.evaluation.tasks * (recipe.evaluation.samples or 1)


def _figure(values: Sequence[float], error: float) -> Figure:
    mean = fmean(values)
    spread = _STUDENT[min(len(values), max(_STUDENT))] * stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0
    reach = math.hypot(spread, error * mean)
    return Figure(mean, max(0.0, mean - reach), mean + reach)


def _speed_error(rates: Rates, steps: int) -> float:
    """How far rates may be off together: the largest residual of what was fitted, as that of a mean over ``steps``."""
    errors = [each.error for each in (rates.learner.token, rates.engine.step, rates.publication.move) if each.error is not None]
    return _TWO_SIDED * max(errors, default=0.0) / math.sqrt(steps)


def _memory(recipe: Recipe) -> dict[str, int]:
    try:
        shape = read_shape(recipe.model.path)
    except RecipeError:
        return {}
    return {each.role: each.count * each.each_bytes for each in processes_of(recipe, shape)}


def _notes(recipe: Recipe, basis: Basis, rates: Rates, outcomes: Sequence[Outcome]) -> Iterator[str]:
    yield from basis.notes
    requests = max(outcome.most_requests for outcome in outcomes)
    measured = rates.engine.request.measured
    if measured is not None and requests > MARGIN * measured[1]:
        yield f"rates of engines with up to {requests:,} requests were extrapolated from {measured[1]:,.0f}"
    tokens, measured = max(outcome.rank_tokens for outcome in outcomes), rates.learner.token.measured
    if measured is not None and not measured[0] / MARGIN <= tokens <= MARGIN * measured[1]:
        span = f"{measured[0]:,.0f} to {measured[1]:,.0f}"
        yield f"the time of a rank with {tokens:,} tokens was extrapolated from {span}"
    if basis.hardware is None and recipe.learner.data_parallel != rates.learner.ranks.value:
        known, ranks = int(rates.learner.ranks.value), recipe.learner.data_parallel
        yield f"{ranks} data-parallel ranks were foreseen from {known}, without what adding gradients over more of them takes"
    if any(pool.engine_nodes > 1 for pool in recipe.generators.by_pool.values()):
        yield (
            "engines on several nodes were foreseen without what they wait for the network, unless they were measured so: "
            "`asyncrl launch --dry-run` says how often they do"
        )
    if recipe.evaluation.every < recipe.steps and basis.evaluation is None:
        yield "no episodes of an evaluation are known, so evaluations take no time"
    if basis.played_by is not None:
        taken = "rates and episodes were" if basis.recipe is not None else "episodes were"
        for key in ("model", "environment", "sampling", "tasks", "reward"):
            if getattr(basis.played_by, key) != getattr(recipe, key):
                yield f"section {key} is not that of the run that was measured: its {taken} taken as they are"
    if basis.recipe is not None:
        yield from _other_than(basis.recipe, recipe)
    if not basis.training.episodes.correlated and basis.training.count > basis.training.groups:
        yield "most groups have one kept episode, so episodes of a group were drawn independently: keep all for their correlation"
    if not rates.engine.cache_tokens.value:
        yield (
            "how many tokens the key-value cache holds is not known, so no limit was modelled: long contexts and many requests "
            "may be slower"
        )
    if len(outcomes) == 1:
        yield "there is one modelled run, so intervals lack what differs from run to run: give --seeds 3 or more"
    if outcomes[0].scale > 1:
        yield "large runs were modelled by smaller ones of the same shape (docs/how-to/planning.md)"
    if any(outcome.preempted for outcome in outcomes):
        yield "the key-value cache was short, so that requests were computed again: fewer generators.max_running may be faster"


def _other_than(measured: Recipe, recipe: Recipe) -> Iterator[str]:
    """Say in what the recipe differs that rates depend on, and that the model does not follow."""
    for key in ("dtype", "tensor_parallel", "engine_nodes", "engine"):
        if getattr(measured.generators, key) != getattr(recipe.generators, key):
            yield f"generators.{key} is not that of the run that was measured"
    for key in ("dtype", "tensor_parallel", "pipeline_parallel", "context_parallel", "recompute", "lora"):
        if getattr(measured.learner, key) != getattr(recipe.learner, key):
            yield f"learner.{key} is not that of the run that was measured"
    if (measured.algorithm.epochs, measured.algorithm.minibatches) != (recipe.algorithm.epochs, recipe.algorithm.minibatches):
        yield "algorithm.epochs and minibatches are not those of the run that was measured"
