"""Writes the table of real chat templates in docs/reference/models.md: ``python tests/real_models/templates_table.py``."""

import asyncio
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from real_tokenizers import template_of, tokenizer_of
from transformers import AutoTokenizer

from asyncrl.generators.chat_format import ChatFormat
from asyncrl.generators.chat_template import TemplateUnsuitable
from asyncrl.generators.template_trial import CONVERSATIONS, Outcome, try_template

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "models.md"
BEGIN, END = "<!-- table: python tests/real_models/templates_table.py -->\n", "<!-- end -->"
REAL: dict[str, tuple[str, str]] = {
    "Qwen3": ("qwen3", ""),
    "Qwen3 2507 (Instruct)": ("qwen3", "qwen3_instruct_2507"),
    "Qwen2.5": ("qwen3", "qwen2_5"),
    "Qwen3.5 (thinking)": ("qwen3", "qwen3_5_think"),
    "Llama 3.1": ("llama3_1", "llama3_1"),
    "Llama 3.2": ("llama3_1", "llama3_2"),
    "Llama 3.1, a copy without tools": ("llama3_1", ""),
    "DeepSeek-V3": ("deepseek_v3", ""),
    "DeepSeek-R1-Distill": ("deepseek_v3", "deepseek_r1_distill"),
    "Gemma 3": ("gemma3", ""),
    "gpt-oss": ("gptoss", "gptoss"),
}
"""Name in the table: the family whose tokenizer it is, and the template of TRL's wheel; empty for the tokenizer's own."""


_MANY = 3
"""From this number on, conversations are counted and not listed."""


@cache
def chat_format(family: str, template: str) -> ChatFormat:
    tokenizer = AutoTokenizer.from_pretrained(tokenizer_of(family))
    if template:
        tokenizer.chat_template = template_of(template)
    return ChatFormat(tokenizer)


def row(name: str) -> str:
    """One row of the table."""
    try:
        trials = asyncio.run(try_template(chat_format(*REAL[name])))
    except TemplateUnsuitable as error:
        return f"| {name} | refused | {error.problem} |"
    equal = [trial.conversation for trial in trials if trial.outcome is Outcome.EQUAL]
    others: dict[str, list[str]] = {}
    for trial in trials:
        if trial.outcome is not Outcome.EQUAL:
            others.setdefault(reason(trial.outcome, trial.detail), []).append(trial.conversation)
    said = "; ".join(f"{', '.join(some) if len(some) < _MANY else len(some)}: {why}" for why, some in others.items())
    return f"| {name} | {len(equal)} of {len(trials)} | {said} |"


def reason(outcome: Outcome, detail: str) -> str:
    match outcome:
        case Outcome.REWRITTEN:
            return "the template strips an earlier turn's thoughts, the row keeps them"
        case Outcome.TOKENS:
            return "the same text, in other tokens"
        case _:
            return f"refused, {detail}"


def table() -> Iterator[str]:
    yield "| template | token for token as rendered at once | otherwise |"
    yield "| --- | --- | --- |"
    yield from map(row, REAL)


def page(lines: list[str]) -> str:
    """The page with these lines as its table."""
    text = PAGE.read_text()
    before, after = text.partition(BEGIN)[0], text.partition(END)[2]
    tried = f"Tried with {len(CONVERSATIONS)} conversations: thoughts, tools, calls, system messages, many scripts."
    return f"{before}{BEGIN}{tried}\n\n" + "\n".join(lines) + f"\n{END}{after}"


if __name__ == "__main__":
    sys.stdout.write(f"{PAGE.write_text(page(list(table())))} characters\n")
