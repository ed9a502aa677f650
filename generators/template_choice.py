"""The chat templates of a model, as a recipe wants them: those of its tokenizer or one in their place, with values of variables.

A tokenizer has one template, or several by name, of which one may be for conversations with tools. What always holds: values
become part of a template's text, so whoever renders it, also the exported model, renders it with them unless told otherwise; and
a variable that no template reads is refused, as it would change nothing.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from asyncrl.core.errors import RecipeError
from asyncrl.core.recipe.schema import ModelConfig

DEFAULT, FOR_TOOLS = "default", "tool_use"
"""The names of the template for all conversations, and of the one for those with tools, if there is one."""
FILE, FURTHER = "chat_template.jinja", "additional_chat_templates"
"""Where a tokenizer's folder has its template, and the folder with further ones by name."""

_KWARGS = "model.chat_template_kwargs"
_GIVEN = frozenset(
    {
        *("messages", "tools", "documents", "add_generation_prompt", "continue_final_message"),
        *("raise_exception", "strftime_now", "additional_special_tokens"),
        *(f"{name}_token" for name in ("bos", "eos", "unk", "pad", "sep", "cls", "mask")),
    }
)
"""What whoever renders a template gives it, so that a recipe cannot."""
_ASKING = ("defined", "undefined", "default", "d")
"""Tests and filters of Jinja with which a template asks whether a variable has been set."""
_GENERATION = re.compile(r"\{%[-+]?\s*(?:end)?generation\s*[-+]?%\}")
"""Tags of transformers that mark what an assistant says, which plain Jinja does not know."""


def template_files(folder: Path) -> dict[str, Path]:
    """Return the files with the templates of a tokenizer's folder by name; none if they stand elsewhere."""
    files = {DEFAULT: folder / FILE} if (folder / FILE).is_file() else {}
    return files | {file.stem: file for file in sorted((folder / FURTHER).glob("*.jinja"))}


def templates_of(found: str | Mapping[str, str] | None, model: ModelConfig) -> dict[str, str]:
    """Return the templates that a recipe's model is to have, by name; none if its tokenizer has none and the recipe names none.

    Args:
        found: the tokenizer's template, or its templates by name.
        model: the recipe's section, whose ``chat_template`` is the text of a template.

    Raises:
        RecipeError: the recipe sets a variable that no template reads.
    """
    named = {DEFAULT: found} if isinstance(found, str) else dict(found or {})
    if model.chat_template is not None:
        named = {DEFAULT: model.chat_template}
    if not model.chat_template_kwargs:
        return named
    known = {name: variables_of(template) for name, template in named.items()}
    read = set[str]().union(*known.values())
    for name in model.chat_template_kwargs:
        if name not in read:
            knows = f"it reads {', '.join(sorted(read))}" if read else "it reads none that can be set"
            whose = f"of {model.path}" if model.chat_template is None else "that the recipe names"
            problem = f"the chat template {whose} reads no variable {name!r}; {knows}"
            raise RecipeError(f"{_KWARGS}.{name}", problem, "correct the name, or leave it out")
    return {
        name: with_values(template, {key: value for key, value in model.chat_template_kwargs.items() if key in known[name]})
        for name, template in named.items()
    }


def variables_of(template: str) -> set[str]:
    """Return the names of the variables that a template reads and that a recipe may set; none if it is no Jinja template.

    A variable that the template sets itself is among them only if it asks whether somebody else has.
    """
    from jinja2 import TemplateSyntaxError, meta, nodes  # comes with transformers
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    try:
        parsed = ImmutableSandboxedEnvironment(extensions=["jinja2.ext.loopcontrols"]).parse(_GENERATION.sub("", template))
        read = meta.find_undeclared_variables(parsed) - _GIVEN
    except (TemplateSyntaxError, RecursionError):
        return set()  # whoever renders it says why
    written = {name.name for name in parsed.find_all(nodes.Name) if name.ctx != "load"}
    asked = {
        question.node.name
        for question in parsed.find_all((nodes.Test, nodes.Filter))
        if question.name in _ASKING and isinstance(question.node, nodes.Name)
    }
    of_macros = {name.name for name in parsed.find_all(nodes.Name) if name.ctx == "param"}
    return (read - written) | (read & asked - of_macros)


def with_values(template: str, values: Mapping[str, Any]) -> str:
    """Return a template in which variables have these values where whoever renders it gives none."""
    settings = "".join(
        f"{{% set {name} = {name} if {name} is defined and {name} is not none else {value!r} %}}"
        for name, value in values.items()
    )
    # Jinja takes a line end for that of the tag before it, unless told not to.
    kept = settings.removesuffix("%}") + "+%}"
    if template.startswith((settings, kept)):
        return template
    return (kept if template.startswith(("\n", "\r")) else settings) + template
