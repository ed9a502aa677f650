"""Where a plan's rates come from: a run, a probe, a file, or a file with the episodes of a run."""

from collections.abc import Callable
from pathlib import Path

from asyncrl.core.errors import RecipeError
from asyncrl.core.recipe.schema import Recipe
from asyncrl.planning.rate_fit import Basis, fit_run
from asyncrl.planning.rates_file import RatesFile
from asyncrl.run.nodes.machine import Machine
from asyncrl.simulation.rates import Rates

_MEMORY_A_GPU = 200 << 30
"""Host memory of a machine for each of its GPUs, assumed where the machine is not at hand."""


def basis_of_file(file: RatesFile, name: str, played: Basis | None) -> Basis:
    """What a file says, with the episodes of a run where there is one.

    Raises:
        RecipeError: the file has no episodes, and there is no run.
    """
    if played is None and file.episodes is None:
        raise RecipeError(
            "--rates", f"{name!r} has no episodes", "add a section episodes, or episodes that were played: --from RUN"
        )
    training = played.training if played is not None else file.episodes.kept()  # type: ignore[union-attr]
    rates: Rates | None = None
    if file.engine is not None and file.learner is not None and file.publication is not None:
        rates = Rates(file.engine, file.learner, file.publication, file.machine, file.failures)
    return Basis(
        name=f"rates of {name}" + (f", episodes of {played.name}" if played is not None else ""),
        device=file.device,
        rates=rates,
        training=training,
        evaluation=None if played is None else played.evaluation,
        played_by=None if played is None else played.played_by,
        hardware=file.hardware,
        failures=file.failures,
    )


def machine_of(file: RatesFile | None, gpus: int | None) -> Machine:
    """The machine that a recipe is composed for: this one, or one with as many GPUs of the file's kind.

    Args:
        gpus: None for those of one machine of the file.
    """
    if file is None or file.hardware is None:
        return Machine.here()
    gpus = file.gpus_a_node if gpus is None else gpus
    nodes = max(1, -(-gpus // file.gpus_a_node))
    memory = nodes * file.gpus_a_node * _MEMORY_A_GPU
    return Machine(
        memory=memory,
        free=memory,
        cores=nodes * file.cores,
        gpus=gpus,
        bfloat16=True,
        gpu_memory=int(file.hardware.memory_bytes.value),
        gpu_name=file.device,
    )


def basis_from(
    recipe: Recipe, *, run: Path | None, file: RatesFile | None, name: str, probe: Callable[[Recipe], Path] | None
) -> Basis:
    """Return what predictions of ``recipe`` stand on.

    Args:
        run: a run, or None.
        file: a file of rates called ``name``, or None.
        probe: makes a short run of the recipe; None if there is to be none.

    Raises:
        RecipeError: the run or the file does not have what is needed.
    """
    played = fit_probe(probe(recipe)) if probe is not None else None if run is None else fit_run(run)
    if file is not None:
        return basis_of_file(file, name, played)
    if played is None:
        raise RecipeError("", "nothing says where rates come from", "give --from RUN, --probe or --rates FILE")
    return played


def fit_probe(run: Path) -> Basis:
    """Fit rates to the run of a probe.

    Raises:
        RecipeError: it has done too few training steps; the remedy names a longer run, because a probe ends by itself.
    """
    try:
        return fit_run(run)
    except RecipeError as error:
        remedy = "launch a longer run, `asyncrl launch RECIPE steps=20`, and give --from RUN"
        raise RecipeError("--probe", error.problem, remedy) from error
