"""Which tool-call parsers vLLM has, known without vLLM where that is enough: to import it takes many seconds."""

import subprocess
import sys

import msgspec

from asyncrl.core.errors import RecipeError

VLLM_PARSERS = frozenset(
    [
        "apertus",
        "cohere_command3",
        "cohere_command4",
        "deepseek_v3",
        "deepseek_v31",
        "deepseek_v32",
        "deepseek_v4",
        "deepseek_v41",
        "dots",
        "ernie45",
        "functiongemma",
        "gemma4",
        "gigachat3",
        "glm45",
        "glm47",
        "granite",
        "granite-20b-fc",
        "granite4",
        "hermes",
        "hf",
        "hunyuan_a13b",
        "hy_v3",
        "hy_v4",
        "inkling",
        "internlm",
        "jamba",
        "k2_horizon",
        "kimi_k2",
        "kimi_k3",
        "lfm2",
        "ling3",
        "llama3_json",
        "llama4_json",
        "llama4_pythonic",
        "longcat",
        "mimo",
        "minicpm5",
        "minimax_m2",
        "minimax_m3",
        "mistral",
        "muse_glimmer",
        "olmo3",
        "openai",
        "phi4_mini_json",
        "plamo3",
        "poolside_v1",
        "pythonic",
        "qwen3_coder",
        "qwen3_json",
        "qwen3_xml",
        "seed_oss",
        "step3",
        "step3p5",
        "xlam",
    ]
)
"""Those of vLLM 0.32 itself. Plug-ins of vLLM may bring more."""

_LIST_ALL = """
import sys, msgspec
from vllm.plugins import load_general_plugins
from vllm.tool_parsers import ToolParserManager
load_general_plugins()
sys.stdout.buffer.write(b"\\n" + msgspec.json.encode(sorted(ToolParserManager.list_registered())))
"""
_LISTING_S = 300.0


def check_tool_parser(name: str) -> None:
    """Refuse a parser that there is not. A name that is none of vLLM's own is looked for among those of its plug-ins.

    Raises:
        RecipeError: vLLM has no parser of that name; lists those it has.
    """
    if name not in VLLM_PARSERS and name not in (known := VLLM_PARSERS | _all_parsers()):
        raise RecipeError("model.tool_parser", f"vLLM has no tool parser {name!r}", f"use one of {', '.join(sorted(known))}")


def _all_parsers() -> frozenset[str]:
    """What a process with vLLM lists; nothing where there is no vLLM, whose absence is told once an engine is to start."""
    try:
        done = subprocess.run([sys.executable, "-c", _LIST_ALL], capture_output=True, timeout=_LISTING_S, check=True)
        return frozenset(msgspec.json.decode(done.stdout.splitlines()[-1], type=list[str]))
    except (subprocess.SubprocessError, msgspec.DecodeError, IndexError):
        return frozenset()
