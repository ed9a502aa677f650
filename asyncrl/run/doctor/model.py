"""Looks at a model's folder: its architecture, its sizes, its weights, and whether its chat template marks where a turn ends."""

import asyncio
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from asyncrl.core.errors import AsyncRLError, RecipeError
from asyncrl.core.files.memory_files import memory_file_system
from asyncrl.core.files.weight_files import check_weights, stored_tensors
from asyncrl.core.measures.units import memory, quantity
from asyncrl.core.recipe.learner import LearnerConfig
from asyncrl.core.recipe.schema import ModelConfig
from asyncrl.run.doctor.finding import Finding, fine, note, problem
from asyncrl.run.models.chat_template import tool_parser_of
from asyncrl.run.models.model_shape import read_shape
from generators.template_trial import Outcome, Trial, try_template
from generators.templates import FOR_TOOLS, variables_of
from learners.supported_model import supported_config

_PAGE = 'see "What a chat template must do" in docs/models.md'
_DIFFERS = {
    Outcome.REWRITTEN: "the template writes earlier turns in another way once there are later ones",
    Outcome.TOKENS: "the same text as rendered at once, in other tokens",
}


def check_model(model: ModelConfig) -> Iterator[Finding]:
    """Look at the model in a Hugging Face folder, as a recipe with this section would use it."""
    path = Path(model.path)
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
    yield from _template(model)


def _template(model: ModelConfig) -> Iterator[Finding]:
    from generators.chat_format import ChatFormat  # takes seconds
    from generators.chat_template import TemplateUnsuitable

    try:
        chat = ChatFormat.load(model.path, model)
    except TemplateUnsuitable as error:
        yield problem("chat template", str(error), _PAGE)
        return
    except RecipeError as error:
        yield problem("chat template", error.problem, error.remedy)
        return
    ends = " or ".join(chat.decode([end]) for end in chat.ends_of_turn)
    yield fine("chat template", f"it marks where each turn begins and ends; sampling stops at {ends}")
    try:
        parser, seen = tool_parser_of(model.path, model.chat_template)
        yield fine("tool calls", f"model.tool_parser: auto is {parser}, because {seen}")
    except RecipeError as error:
        yield note("tool calls", error.problem, error.remedy)
    yield from _variables(chat.templates, model)
    yield from _conversations(asyncio.run(try_template(chat)))


def _variables(templates: Mapping[str, str], model: ModelConfig) -> Iterator[Finding]:
    """Say which templates there are, and which of their variables a recipe can set."""
    if len(templates) > 1:
        yield fine(
            "chat template", f"there are {', '.join(templates)}; an episode with tools has {FOR_TOOLS}, if that is among them"
        )
    if variables := sorted(set[str]().union(*map(variables_of, templates.values()))):
        values = model.chat_template_kwargs
        named = [f"{name} ({values[name]!r} here)" if name in values else name for name in variables]
        yield fine("chat template", f"model.chat_template_kwargs can set {', '.join(named)}")


def _conversations(trials: Sequence[Trial]) -> Iterator[Finding]:
    """Say how rows that grow turn by turn compare with conversations rendered at once, like ones together."""
    alike: dict[tuple[Outcome, str], list[Trial]] = {}
    for trial in trials:
        alike.setdefault((trial.outcome, trial.detail if trial.outcome is Outcome.REFUSED else ""), []).append(trial)
    for (outcome, detail), some in alike.items():
        which = "all conversations tried" if len(some) == len(trials) else ", ".join(trial.conversation for trial in some)
        match outcome:
            case Outcome.EQUAL:
                yield fine("conversations", f"{which}: token for token as rendered at once")
            case Outcome.REFUSED:
                yield note("conversations", f"{which}: refused, {detail}", f"do without, or {_PAGE}")
            case _:
                found = f"{which}: {_DIFFERS[outcome]} ({some[0].conversation}: {some[0].detail})"
                yield note("conversations", found, "nothing: an episode keeps each turn as it was sampled")


def _free(folder: Path) -> int:
    return shutil.disk_usage(folder).free
