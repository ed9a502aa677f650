"""Looks at a model's folder: its architecture, its sizes, its weights, and whether its chat template marks where a turn ends."""

import shutil
from collections.abc import Iterator
from pathlib import Path

from asyncrl.core.errors import AsyncRLError, RecipeError
from asyncrl.core.files.memory_files import memory_file_system
from asyncrl.core.files.weight_files import check_weights, stored_tensors
from asyncrl.core.measures.units import memory, quantity
from asyncrl.core.recipe.learner import LearnerConfig
from asyncrl.run.doctor.finding import Finding, fine, problem
from asyncrl.run.models.model_shape import read_shape
from learners.supported_model import supported_config


def check_model(path: Path) -> Iterator[Finding]:
    """Look at the model in a Hugging Face folder."""
    try:
        shape = read_shape(str(path))
    except AsyncRLError as error:
        yield problem("model", str(error), 'see "Models that can be trained" in docs/models.md')
        return
    yield fine("model", f"about {quantity(shape.parameters)} parameters")
    try:
        supported_config(path, LearnerConfig())
        check_weights(stored_tensors(path, "model.path"), shape.architecture.tensors(), path, "model.path")
    except RecipeError as error:
        yield problem("model", error.problem, error.remedy)
    needed = 2 * sum(file.stat().st_size for file in path.glob("*.safetensors"))
    folder = memory_file_system()
    free = _free(folder)
    if needed > free:
        yield problem(
            "shared memory",
            f"two versions of the weights take {memory(needed)}, and {memory(free)} are free at {folder}",
            "make it larger (--shm-size for a container, else mount -o remount,size=...)",
        )
    yield from _template(path)


def _template(path: Path) -> Iterator[Finding]:
    from generators.chat import ChatFormat, TemplateUnsuitable  # takes seconds

    try:
        ChatFormat.load(str(path))
    except TemplateUnsuitable as error:
        yield problem("chat template", str(error), 'see "What a chat template must do" in docs/models.md')
    else:
        yield fine("chat template", "it marks where each turn begins and ends")


def _free(folder: Path) -> int:
    return shutil.disk_usage(folder).free
