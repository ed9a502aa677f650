"""Chooses the tool parser of a model from its chat template, read from the files of its tokenizer and without loading it."""

from collections.abc import Iterator

import msgspec

from asyncrl.core.errors import RecipeError
from asyncrl.run.models.hub import is_hub_id, model_file
from asyncrl.run.models.model_shape import TINY
from generators.calls.formats import FORMATS, format_of

_KEY = "model.tool_parser"


class _NamedTemplate(msgspec.Struct):
    name: str
    template: str


class _AddedToken(msgspec.Struct):
    content: str


class _TokenizerConfig(msgspec.Struct):
    """What is needed of ``tokenizer_config.json``."""

    chat_template: str | list[_NamedTemplate] | None = None
    added_tokens_decoder: dict[str, _AddedToken] = {}


class _Tokenizer(msgspec.Struct):
    """What is needed of ``tokenizer.json``."""

    added_tokens: list[_AddedToken] = []


def tool_parser_of(path: str) -> tuple[str, str]:
    """Return the name of the tool parser that fits a model, and why it does.

    Args:
        path: a folder, an id on the hub, or ``tiny``.

    Raises:
        RecipeError: the model has a chat template, and it is of no known format.
    """
    if path == TINY:
        return "hermes", "the tiny model learns to call tools in this format"
    config = _config(path)
    template = "\n".join(_templates(path, config))
    if not template:
        return "hermes", "the model's chat template is not known"  # whoever loads its tokenizer refuses it
    found = format_of(template) or format_of(template, _added_tokens(path, config))
    if found is None:
        known = ", ".join(dict.fromkeys(each.parser for each in FORMATS))
        raise RecipeError(
            _KEY,
            f"auto, but the chat template of {path} shows none of the known formats of tool calls ({known})",
            "name the vLLM parser that reads the model's calls (docs/episodes.md); hermes will do if no tools are called",
        )
    format_, seen = found
    return format_.parser, seen


def _config(path: str) -> _TokenizerConfig:
    try:
        return msgspec.json.decode(model_file(path, "tokenizer_config.json", _KEY).read_bytes(), type=_TokenizerConfig)
    except (OSError, ValueError, RecursionError, RecipeError):
        return _TokenizerConfig()


def _added_tokens(path: str, config: _TokenizerConfig) -> set[str]:
    """Return the added tokens of a vocabulary: releases of Hugging Face transformers write them to one file or the other."""
    try:
        tokenizer = msgspec.json.decode(model_file(path, "tokenizer.json", _KEY).read_bytes(), type=_Tokenizer)
    except (OSError, ValueError, RecursionError, RecipeError):
        tokenizer = _Tokenizer()
    return {token.content for token in (*config.added_tokens_decoder.values(), *tokenizer.added_tokens)}


def _templates(path: str, config: _TokenizerConfig) -> Iterator[str]:
    """Yield the templates of a model: a file of its own takes the place of what the configuration has."""
    if not is_hub_id(path) or config.chat_template is None:
        try:
            yield model_file(path, "chat_template.jinja", _KEY).read_text()
            return
        except (OSError, ValueError, RecipeError):
            pass
    match config.chat_template:
        case str(template):
            yield template
        case list(several):
            yield from (each.template for each in several)
