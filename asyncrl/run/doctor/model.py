"""Looks at a model's folder as a run would use it: its architecture, weights, vocabulary and chat template.

What always holds: no weights are loaded; what a plan refuses of the folder is a problem here, in the same words; one part that
is wrong does not keep the others from being looked at. ``python -P -m asyncrl.run.doctor.model`` does so in its own process.
"""

import asyncio
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from asyncrl.core.errors import RecipeError
from asyncrl.core.files.memory_files import memory_file_system
from asyncrl.core.measures.units import memory, quantity
from asyncrl.core.recipe.learner import LearnerConfig
from asyncrl.core.recipe.schema import ModelConfig
from asyncrl.generators.template_choice import FOR_TOOLS, variables_of
from asyncrl.generators.template_trial import Outcome, Trial, try_template
from asyncrl.learners.supported_model import supported_config
from asyncrl.run.doctor.finding import Finding, fine, note, problem
from asyncrl.run.models.asked_process import AskedProcess, answer_one
from asyncrl.run.models.dequantised import check_dequantisable, dequantised_folders, quantisation
from asyncrl.run.models.embedded_tokens import check_embedded
from asyncrl.run.models.model_facts import Fact, chat_facts, token_fact, weight_facts
from asyncrl.run.models.model_shape import check_tied, read_shape
from asyncrl.run.models.model_weights import check_folder, check_output, check_played
from asyncrl.run.models.template_facts import tool_parser_of

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

    from asyncrl.generators.chat_format import ChatFormat

_PAGE = 'see "What a chat template must do" in docs/reference/models.md'
_DIFFERS = {
    Outcome.REWRITTEN: "the template writes earlier turns in another way once there are later ones",
    Outcome.TOKENS: "the same text as rendered at once, in other tokens",
}
_LONGEST_S = 60.0
"""How long looking at a model may take."""


def looking_at(model: ModelConfig) -> AskedProcess:
    """Have a process come up that will look at a model; :func:`findings_of` returns what it has found."""
    return AskedProcess(__name__, light=not quantisation(Path(model.path)))


def findings_of(process: AskedProcess, model: ModelConfig) -> Iterator[Finding]:
    """Wait for what a process of :func:`looking_at` finds."""
    try:
        found = process.ask(list[Finding], msgspec.json.encode(model), _LONGEST_S)
    except TimeoutError:
        yield problem("model", f"looking at it did not end in {_LONGEST_S:g} s", "correct its chat template")
        return
    yield from found


def check_model(model: ModelConfig) -> Iterator[Finding]:
    """Look at the model in a Hugging Face folder, as a recipe with this section would use it."""
    path = Path(model.path)
    if not (path / "config.json").is_file():
        remedy = "name a Hugging Face folder that holds config.json, tokenizer and weights"
        yield problem("model", f"there is no {path / 'config.json'}", remedy)
        return
    found: list[Finding] = []
    source = _source(path, found)
    yield from found
    needed = 2 * sum(file.stat().st_size for file in path.glob("*.safetensors"))
    folder = memory_file_system()
    free = _free(folder)
    if needed > free:
        yield problem(
            "shared memory",
            f"two versions of the weights take {memory(needed)}, and {memory(free)} are free at {folder}",
            "make it larger (--shm-size for a container, else mount -o remount,size=...)",
        )
    yield from _template(model, source)


def _source(path: Path, found: list[Finding]) -> "PreTrainedConfig | None":
    """Look at configuration and weights, and return the configuration; None if transformers cannot read it."""
    from transformers import AutoConfig

    shape = source = None
    try:
        shape = read_shape(str(path))
        source = supported_config(path, LearnerConfig(), quantised=True)
        check_tied(shape)
        found.append(fine("model", f"{source.architectures[0]}, about {quantity(shape.parameters)} parameters"))
    except RecipeError as error:
        remedy = f'{error.remedy}; see "Models that can be trained" in docs/reference/models.md'
        found.append(problem("model", error.problem, remedy))
    if source is None:
        try:
            source = AutoConfig.from_pretrained(path)
        except (OSError, ValueError, KeyError):
            return None  # already said
    tied = bool(source.get_text_config().tie_word_embeddings)
    try:
        if shape is None:
            check_played(path)
            check_output(path, tied=tied)
        else:
            check_folder(path, shape, "model.path")
        found += map(_said, weight_facts(path, tied=tied))
    except RecipeError as error:
        found.append(problem("weights", error.problem, error.remedy))
    if method := quantisation(path):
        try:
            check_dequantisable(source)
            copy = f"{method}; a run dequantises them into {dequantised_folders()}"
            found.append(note("quantised weights", copy, "see that there is room for two bytes a weight"))
        except RecipeError as error:
            found.append(problem("quantised weights", error.problem, error.remedy))
    return source


def _said(fact: Fact) -> Finding:
    return fine(fact.topic, fact.found)


def _template(model: ModelConfig, source: "PreTrainedConfig | None") -> Iterator[Finding]:
    from asyncrl.generators.chat_format import ChatFormat
    from asyncrl.generators.chat_template import TemplateUnsuitable

    try:
        chat = ChatFormat.load(model.path, model)
    except TemplateUnsuitable as error:
        yield problem("chat template", str(error), _PAGE)
        return
    except RecipeError as error:
        yield problem("chat template", error.problem, error.remedy)
        return
    if source is not None and (vocabulary := getattr(source.get_text_config(), "vocab_size", None)) is not None:
        yield _vocabulary(chat, vocabulary, Path(model.path))
    yield from map(_said, chat_facts(chat, model))
    try:
        parser, seen = tool_parser_of(model.path, model.chat_template)
        yield fine("tool calls", f"model.tool_parser: auto is {parser}, because {seen}")
    except RecipeError as error:
        yield note("tool calls", error.problem, error.remedy)
    yield from _variables(chat.templates, model)
    yield from _conversations(asyncio.run(try_template(chat)))


def _vocabulary(chat: "ChatFormat", vocabulary: int, folder: Path) -> Finding:
    try:
        check_embedded(chat, vocabulary, folder)
    except RecipeError as error:
        return problem("vocabulary", error.problem, error.remedy)
    return _said(token_fact(chat, vocabulary))


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


def main() -> None:
    """Look at one model. With the argument ``light``, torch is not imported: only quantised weights need it here."""
    answer_one(lambda request: msgspec.json.encode(list(check_model(msgspec.json.decode(request, type=ModelConfig)))))


if __name__ == "__main__":
    main()
