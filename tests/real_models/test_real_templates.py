"""Chat templates and tokenizers that others have made: what of them is continued token by token, and what is refused and why."""

import asyncio

import pytest
from real_tokenizers import tokenizer_of
from templates_table import PAGE, REAL, chat_format, row
from transformers import AutoTokenizer

from asyncrl.generators.chat_format import ChatFormat
from asyncrl.generators.chat_template import TemplateUnsuitable
from asyncrl.generators.template_trial import Outcome, try_template

ALL_EQUAL = ("Qwen3 2507 (Instruct)", "Qwen2.5")
ONE_CALL_A_TURN = ("Llama 3.1", "Llama 3.2")


@pytest.mark.parametrize("name", REAL)
def test_the_table_in_the_docs_says_what_comes_of_each_template(name: str) -> None:
    assert row(name) in PAGE.read_text().splitlines(), "python tests/real_models/templates_table.py"


@pytest.mark.parametrize("name", ALL_EQUAL)
def test_a_template_that_only_appends_is_continued_token_for_token(name: str) -> None:
    assert {trial.outcome for trial in asyncio.run(try_template(chat_format(*REAL[name])))} == {Outcome.EQUAL}


@pytest.mark.parametrize("name", ONE_CALL_A_TURN)
def test_only_what_the_template_itself_refuses_is_refused(name: str) -> None:
    trials = asyncio.run(try_template(chat_format(*REAL[name])))
    refused = {trial.conversation: trial.detail for trial in trials if trial.outcome is not Outcome.EQUAL}
    assert refused == dict.fromkeys(
        ("two calls", "answers in another order"), "This model only supports single tool-calls at once!"
    )


def test_harmony_ends_a_turn_in_two_ways_and_is_refused() -> None:
    with pytest.raises(TemplateUnsuitable, match="only where the conversation ends"):
        chat_format(*REAL["gpt-oss"])


def test_the_template_for_gpt_oss_in_the_docs_is_continued_token_for_token_without_tools() -> None:
    tokenizer = AutoTokenizer.from_pretrained(tokenizer_of("gptoss"))
    tokenizer.chat_template = PAGE.read_text().partition("```jinja\n")[2].partition("```")[0]
    chat = ChatFormat(tokenizer)
    assert [chat.decode([end]) for end in chat.ends_of_turn] == ["<|end|>", "<|return|>"]
    trials = asyncio.run(try_template(chat))
    assert [trial.outcome for trial in trials].count(Outcome.EQUAL) == 6
    refused = {trial.detail for trial in trials if trial.outcome is not Outcome.EQUAL}
    assert refused == {"it leaves out the tools, so the model would never see them"}
