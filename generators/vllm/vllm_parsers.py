"""Finds out which tool-call parsers and reasoning parsers vLLM has.

It reads vLLM's source where that is enough, because importing vLLM takes many seconds.
"""

import ast
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import msgspec

from asyncrl.core.errors import ComponentFailed, RecipeError
from asyncrl.core.process.asked_python import ask_python

_LIST_ALL = """
import sys, msgspec
from vllm.plugins import load_general_plugins
from vllm.reasoning import ReasoningParserManager
from vllm.tool_parsers import ToolParserManager
load_general_plugins()
known = {each.__name__: sorted(each.list_registered()) for each in (ReasoningParserManager, ToolParserManager)}
sys.stdout.buffer.write(b"\\n" + msgspec.json.encode(known))
"""
_LISTING_S = 300.0


class _Kind(msgspec.Struct, frozen=True):
    """One kind of parser: what it is called, and where vLLM keeps it."""

    key: str
    name: str
    package: str
    table: str
    manager: str


TOOL = _Kind("model.tool_parser", "tool parser", "tool_parsers", "_TOOL_PARSERS_TO_REGISTER", "ToolParserManager")
REASONING = _Kind(
    "model.reasoning_parser", "reasoning parser", "reasoning", "_REASONING_PARSERS_TO_REGISTER", "ReasoningParserManager"
)


def check_parsers(tool_parser: str, reasoning_parser: str | None) -> None:
    """Refuse parsers that vLLM does not have. Without vLLM nothing is checked; the start of an engine then fails.

    Raises:
        RecipeError: neither vLLM nor one of its plug-ins has a parser of that name; the message lists the known ones.
    """
    _check(TOOL, tool_parser)
    if reasoning_parser is not None:
        _check(REASONING, reasoning_parser)


def _check(kind: _Kind, name: str) -> None:
    own = own_parsers(kind)
    known = own if name in own else own | _all(kind)
    if known and name not in known:
        raise RecipeError(kind.key, f"vLLM has no {kind.name} {name!r}", f"use one of {', '.join(sorted(known))}")


def own_parsers(kind: _Kind) -> frozenset[str]:
    """Return the names of vLLM's own parsers of a kind; none if its source lacks the table that vLLM 0.32 has."""
    vllm = find_spec("vllm")
    source = Path(vllm.origin if vllm and vllm.origin else "nowhere").with_name(kind.package) / "__init__.py"
    for node in ast.parse(source.read_text()).body if source.is_file() else ():
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == kind.table:
            return frozenset(ast.literal_eval(node.value))
    return frozenset()


def _all(kind: _Kind) -> frozenset[str]:
    """Return the parsers of a kind that vLLM and its plug-ins have."""
    return _listed().get(kind.manager, frozenset())


@cache
def _listed() -> dict[str, frozenset[str]]:
    """Return the parsers of each manager that a new process with vLLM and its plug-ins lists; none if that process fails."""
    try:
        return ask_python(dict[str, frozenset[str]], ("-c", _LIST_ALL), _LISTING_S)
    except (TimeoutError, ComponentFailed):
        return {}
