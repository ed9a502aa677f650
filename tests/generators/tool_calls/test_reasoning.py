"""What a model thinks is not what it says, and stays in its history."""

import pytest
from chat_families import FAMILIES
from chat_tokenizers import delta_ids, prompt_ids

from asyncrl.core.messages import Message, ToolCall
from asyncrl.generators.chat_format import ChatFormat
from asyncrl.generators.tool_calls.reader import ToolCallReader
from asyncrl.generators.tool_calls.reasoning import Reasoning

CALL = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'
USER = (Message("user", "Well?"),)


@pytest.fixture(scope="module")
def chat() -> ChatFormat:
    return ChatFormat(FAMILIES["qwen 3"]())


def beginning(turn_start: str) -> ChatFormat:
    """The chat format of a template whose assistant turns begin with ``turn_start``."""
    tokenizer = FAMILIES["qwen 3"]()
    start = "'<|im_start|>assistant\\n'"
    tokenizer.chat_template = tokenizer.chat_template.replace(
        start + " }}{%- endif %}", f"{start} + '{turn_start}' }}}}{{%- endif %}}"
    )
    return ChatFormat(tokenizer)


@pytest.mark.parametrize("parser", ["deepseek_r1", "qwen3"])
@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        ("<think>hm</think>42", "42", 0),
        (f"<think>hm</think>so {CALL}", "so ", 1),
        ("<think>hm</think>\n\n 42\n", " 42\n", 0),
        ("<think>and so on and on", "", 0),
        ("42", "42", 0),
        (f"so {CALL}", "so ", 1),
        ("", "", 0),
    ],
)
def test_reasoning_reaches_neither_tool_parser_nor_environment(chat, parser: str, text: str, content: str, calls: int) -> None:
    action = ToolCallReader(chat.tokenizer, "hermes", Reasoning(chat, parser)).read(text)
    assert (action.content, len(action.calls)) == (content, calls)
    assert all(call == ToolCall("f", {}) for call in action.calls)


def test_a_turn_that_the_template_begins_with_reasoning_needs_no_mark_of_its_own() -> None:
    begun = Reasoning(beginning("<think>\\n"), "deepseek_r1")
    assert begun.cut("hm</think>42") == "42"
    assert begun.cut("hm and so on") == ""
    without = Reasoning(beginning("<think>\\n\\n</think>\\n\\n"), "deepseek_r1")
    assert without.cut("42") == "42", "the template has ended the reasoning"


def test_a_call_that_is_only_thought_of_is_not_cut_off(chat: ChatFormat) -> None:
    reader = ToolCallReader(chat.tokenizer, "hermes", Reasoning(chat, "deepseek_r1"))
    assert reader.read(f"<think>maybe {CALL}</think>42").calls == ()
    assert not reader.ends_within_call('<think>I could <tool_call>{"name"')
    assert reader.ends_within_call('<think>hm</think><tool_call>{"name"')


def test_reasoning_stays_in_the_history_although_the_template_would_strip_it(chat: ChatFormat) -> None:
    """What follows a turn does not depend on it, so that tokens are only ever appended."""
    prompt = prompt_ids(chat, USER)
    turn = chat.tokenizer.encode("<think>hm</think>Right.", add_special_tokens=False)
    delta = delta_ids(chat, USER)
    stream = [*prompt, *turn, chat.end_of_turn, *delta]
    assert chat.decode(stream).endswith(
        "<think>hm</think>Right.<|im_end|>\n<|im_start|>user\nWell?<|im_end|>\n<|im_start|>assistant\n"
    )
    stripped = chat.tokenizer.apply_chat_template(
        [
            {"role": "user", "content": "Well?"},
            {"role": "assistant", "content": "<think>hm</think>Right."},
            {"role": "user", "content": "Well?"},
        ],
        tokenize=False,
    )
    assert "<think>hm" not in stripped, "the family's template does strip it"
