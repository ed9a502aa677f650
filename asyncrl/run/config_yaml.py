"""Writes plain values as YAML that Hydra and OmegaConf read back as they are.

What always holds: reading gives equal values, whatever the texts hold. They would otherwise read some texts as interpolations,
numbers or line breaks.
"""

import re
from collections.abc import Mapping
from typing import Any

import yaml

_INTERPOLATION = re.compile(r"(\\*)\$\{")
_PLAIN = re.compile(r"[A-Za-z_/][A-Za-z0-9_./ -]*")
"""Texts that need no quotes, but for the words that YAML knows, which its own writer puts into them."""


def write_config(values: Mapping[str, Any]) -> str:
    """``values`` as YAML, in their order.

    Args:
        values: texts, numbers, booleans, bytes, None, and lists and mappings of such.
    """
    return yaml.dump(_escaped(values), Dumper=_Dumper, sort_keys=False, allow_unicode=True)


def _escaped(value: Any) -> Any:
    """OmegaConf reads ``\\${`` as ``${``, and a backslash before it as itself if it is doubled. Keys it takes as they are."""
    if isinstance(value, str):
        return _INTERPOLATION.sub(lambda found: found[1] * 2 + r"\${", value)
    if isinstance(value, Mapping):
        return {key: _escaped(entry) for key, entry in value.items()}
    return [_escaped(entry) for entry in value] if isinstance(value, list | tuple) else value


class _Dumper(yaml.SafeDumper):
    """Quotes every text that OmegaConf could read as something else: it knows numbers that YAML does not, such as 1e3."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def represent_text(self, text: str) -> yaml.ScalarNode:
        style = None if _PLAIN.fullmatch(text) else '"'
        return self.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _Dumper.represent_text)
