"""The chat templates of a model, read from the files of its tokenizer without loading it: which tool parser they ask for, and how
they are written to the folder of an exported model."""

from pathlib import Path

import msgspec

from asyncrl.core.errors import RecipeError
from asyncrl.core.files.file_errors import naming
from asyncrl.core.recipe.schema import ModelConfig
from asyncrl.generators.template_choice import DEFAULT, FILE, FURTHER, template_files, templates_of
from asyncrl.generators.tool_calls.formats import FORMATS, format_of
from asyncrl.run.models.hub import tokenizer_folder
from asyncrl.run.models.model_shape import TINY

_KEY, _PATH = "model.chat_template", "model.path"
_CONFIG = "tokenizer_config.json"


class _NamedTemplate(msgspec.Struct):
    name: str
    template: str


class _TokenizerConfig(msgspec.Struct):
    """What is needed of ``tokenizer_config.json``."""

    chat_template: str | list[_NamedTemplate] | dict[str, str] | None = None


def template_text(named: str) -> str:
    """Return the text of the template that a recipe names: of a file, or what it names itself, which then holds Jinja.

    Raises:
        RecipeError: there is no such file, or it holds no template.
    """
    if _is_template(named):
        return named
    try:
        text = Path(named).read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        problem = f"{named!r} cannot be read: {getattr(error, 'strerror', None) or error}"
        raise RecipeError(_KEY, problem, "name a file with a Jinja template, or write the template itself") from error
    if not _is_template(text):
        raise RecipeError(_KEY, f"{named!r} holds no Jinja template: there is neither {{{{ nor {{% in it", "name another file")
    return text


def _is_template(text: str) -> bool:
    return "{{" in text or "{%" in text


def tool_parser_of(path: str, template: str | None = None) -> tuple[str, str]:
    """Return the name of the tool parser that fits a model, and why it does.

    The template alone decides: vocabularies have tokens of formats that a model was never taught, and families share them.

    Args:
        path: a folder, an id on the hub, or ``tiny``.
        template: the text of the template that takes the place of the model's own; None if none does.

    Raises:
        RecipeError: the model's chat template takes tools, and shows no known format of calls.
    """
    if path == TINY and template is None:
        return "hermes", "the tiny model learns to call tools in this format"
    folder = _folder(path)
    text = template or "\n".join(found_templates(folder).values())
    if not text:
        return "hermes", "the model's chat template is not known"  # whoever loads its tokenizer refuses it
    if (found := format_of(text)) is None:
        if "tool" not in text:
            return "hermes", "its chat template knows no tools, so that there are no calls to read"
        known = ", ".join(dict.fromkeys(each.parser for each in FORMATS))
        whose = f"the chat template of {path}" if template is None else "the chat template that the recipe names"
        raise RecipeError(
            "model.tool_parser",
            f"auto, but {whose} shows none of the known formats of tool calls ({known})",
            "name vLLM's parser of the model's calls (docs/reference/episodes.md), or any if the environment has no tools",
        )
    format_, seen = found
    return format_.parser, seen


def found_templates(folder: Path) -> dict[str, str]:
    """Return the templates in a tokenizer's folder by name. Files of their own take the place of what the configuration has."""
    if files := template_files(folder):
        return {name: file.read_text(encoding="utf-8", errors="replace") for name, file in files.items()}
    match _config(folder).chat_template:
        case str(template):
            return {DEFAULT: template}
        case list(several):
            return {each.name: each.template for each in several}
        case dict(several):
            return several
    return {}


def write_templates(folder: Path, model: ModelConfig) -> None:
    """Give the exported model in ``folder``, which has the templates that it began with, those that it was trained with.

    Raises:
        OSError: the disk refuses.
        RecipeError: the recipe sets a variable that no template reads.
    """
    if model.chat_template is None and not model.chat_template_kwargs:
        return
    templates = templates_of(found_templates(folder), model)
    for file in (folder / FURTHER).glob("*.jinja"):
        if file.stem not in templates:
            file.unlink()
    for name, text in templates.items():
        file = folder / (FILE if name == DEFAULT else f"{FURTHER}/{name}.jinja")
        file.parent.mkdir(exist_ok=True)
        with naming(file):
            file.write_text(text, encoding="utf-8")
    config = folder / _CONFIG
    if config.is_file():
        with naming(config):
            content = msgspec.json.decode(config.read_bytes())
            content.pop("chat_template", None)  # some programs read it before the files
            config.write_bytes(msgspec.json.format(msgspec.json.encode(content)))


def _folder(path: str) -> Path:
    """Return the folder of a model's tokenizer; one that does not exist if the hub cannot be asked, which the plan says."""
    try:
        return tokenizer_folder(path, _PATH)
    except RecipeError:
        return Path(path)


def _config(folder: Path) -> _TokenizerConfig:
    try:
        return msgspec.json.decode((folder / _CONFIG).read_bytes(), type=_TokenizerConfig)
    except (OSError, ValueError, RecursionError):
        return _TokenizerConfig()
