"""Finds out which tool-call parsers vLLM has.

It reads vLLM's source where that is enough, because importing vLLM takes many seconds.
"""

import ast
import subprocess
import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import msgspec

from asyncrl.core.errors import RecipeError

_LIST_ALL = """
import sys, msgspec
from vllm.plugins import load_general_plugins
from vllm.tool_parsers import ToolParserManager
load_general_plugins()
sys.stdout.buffer.write(b"\\n" + msgspec.json.encode(sorted(ToolParserManager.list_registered())))
"""
_LISTING_S = 300.0


def check_tool_parser(name: str) -> None:
    """Refuse a tool parser that vLLM does not have. Without vLLM nothing is checked; the start of an engine then fails.

    Raises:
        RecipeError: neither vLLM nor one of its plug-ins has a parser of that name; the message lists the known ones.
    """
    own = own_parsers()
    known = own if name in own else own | _all_parsers()
    if known and name not in known:
        raise RecipeError("model.tool_parser", f"vLLM has no tool parser {name!r}", f"use one of {', '.join(sorted(known))}")


def own_parsers() -> frozenset[str]:
    """Return the names of vLLM's own parsers; none if its source lacks the table that vLLM 0.32 has."""
    vllm = find_spec("vllm")
    source = Path(vllm.origin if vllm and vllm.origin else "nowhere").with_name("tool_parsers") / "__init__.py"
    for node in ast.parse(source.read_text()).body if source.is_file() else ():
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "_TOOL_PARSERS_TO_REGISTER":
            return frozenset(ast.literal_eval(node.value))
    return frozenset()


@cache
def _all_parsers() -> frozenset[str]:
    """Return the parsers that a new process with vLLM and its plug-ins lists; none if that process fails."""
    try:
        done = subprocess.run([sys.executable, "-c", _LIST_ALL], capture_output=True, timeout=_LISTING_S, check=True)
        return frozenset(msgspec.json.decode(done.stdout.splitlines()[-1], type=list[str]))
    except (subprocess.SubprocessError, msgspec.DecodeError, IndexError):
        return frozenset()
