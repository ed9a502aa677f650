"""Writes plain values as YAML that Hydra and OmegaConf read back to equal values.

What always holds: this is true for every text, also for one that either would take for an interpolation, a number or a
line break.
"""

import re
from collections.abc import Mapping
from typing import Any

import msgspec
import yaml

from asyncrl.core.recipe.schema import Recipe

_INTERPOLATION = re.compile(r"(\\*)\$\{")
_PLAIN = re.compile(r"[A-Za-z_/][A-Za-z0-9_./ -]*")
"""Texts that need no quotes; words that YAML knows, such as ``true``, are quoted by its own writer."""


def resolved_yaml(recipe: Recipe) -> str:
    """Every key of the recipe with its value, as YAML that is composed to an equal recipe (:mod:`asyncrl.run.recipe.compose`)."""
    return write_config(msgspec.to_builtins(recipe, builtin_types=(bytes,)))


def write_config(values: Mapping[str, Any]) -> str:
    """Return ``values`` as YAML, in their order.

    Args:
        values: texts, numbers, booleans, bytes, None, and lists and mappings of such.
    """
    return str(yaml.dump(_escaped(values), Dumper=_Dumper, sort_keys=False, allow_unicode=True))


def _escaped(value: Any) -> Any:
    """Escape ``${`` in ``value``, but not in keys: as ``\\${``, with backslashes before it doubled, for OmegaConf."""
    if isinstance(value, str):
        return _INTERPOLATION.sub(lambda found: found[1] * 2 + r"\${", value)
    if isinstance(value, Mapping):
        return {key: _escaped(entry) for key, entry in value.items()}
    return [_escaped(entry) for entry in value] if isinstance(value, list | tuple) else value


class _Dumper(yaml.SafeDumper):
    """Quotes every text that OmegaConf could take for something else, such as 1e3, which is not a number in YAML."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def represent_text(self, text: str) -> yaml.ScalarNode:
        style = None if _PLAIN.fullmatch(text) else '"'
        return self.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _Dumper.represent_text)
