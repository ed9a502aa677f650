# ruff: noqa: RUF001 - DeepSeek writes its control tokens with fullwidth bars
"""The tool parser that fits a chat template."""

import json
from pathlib import Path

import pytest
from chat_families import FAMILIES

from asyncrl.core.errors import RecipeError
from asyncrl.generators.tool_calls.formats import FORMATS, CallFormat, format_of
from asyncrl.generators.tool_calls.reader import ToolCallReader
from asyncrl.generators.vllm.vllm_parsers import TOOL, own_parsers
from asyncrl.run.models.template_facts import tool_parser_of

BARS = "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>"


@pytest.mark.parametrize(
    ("family", "parser"),
    [
        ("tiny", "hermes"),
        ("qwen 3", "hermes"),
        ("llama 3", "llama3_json"),
        ("deepseek", "deepseek_v31"),
        ("mistral", "mistral"),
    ],
)
def test_the_parser_of_each_family_is_found_in_the_files_of_its_tokenizer(family: str, parser: str, tmp_path: Path) -> None:
    FAMILIES[family]().save_pretrained(tmp_path)
    found, reason = tool_parser_of(str(tmp_path))
    assert found == parser
    assert reason.startswith(("its chat template has <", "its chat template has ["))


@pytest.mark.parametrize(
    ("template", "parser"),
    [
        ("<tool_call>\n<function=example>\n<parameter=one>\n1\n</parameter>", "qwen3_coder"),
        ("<tool_call>{function-name}\n<arg_key>{k}</arg_key>\n<arg_value>{v}</arg_value>", "glm45"),
        ("<|start_of_role|>assistant<|end_of_role|><tool_call>", "granite4"),
        (BARS + "function<｜tool▁sep｜>f\n```json\n{}\n```", "deepseek_v3"),
        (BARS + "f<｜tool▁sep｜>{}", "deepseek_v31"),
        ("<|tool_calls_section_begin|><|tool_call_begin|>", "kimi_k2"),
        ("<minimax:tool_call><invoke name=", "minimax_m2"),
        ("<|start_header_id|>ipython<|end_header_id|> <|python_tag|>", "llama3_json"),
    ],
)
def test_formats_that_share_marks_are_told_apart(template: str, parser: str) -> None:
    found = format_of(template)
    assert found is not None
    assert found[0].parser == parser


def test_every_format_names_a_parser_that_vllm_has() -> None:
    assert {name for each in FORMATS for name in each.parsers} <= own_parsers(TOOL)


@pytest.mark.parametrize(
    ("format_", "parser"), [(each, parser) for each in FORMATS for parser in each.parsers], ids=lambda value: str(value)[:30]
)
def test_the_table_knows_which_parsers_need_their_tokens(format_: CallFormat, parser: str) -> None:
    tokenizer = FAMILIES["tiny"]()
    assert not {format_.begin, format_.end} & tokenizer.get_vocab().keys() or format_.begin == "<tool_call>"
    try:
        ToolCallReader(tokenizer, parser)
    except RuntimeError:
        assert format_.by_tokens
    else:
        assert not format_.by_tokens


def test_a_template_without_calls_is_refused_with_the_parsers_to_choose_from(tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{{ tools }}{{ messages[0].content }}<|end|>"}))
    with pytest.raises(RecipeError, match=r"model\.tool_parser: auto, but .* none of the known formats .*hermes.*name vLLM"):
        tool_parser_of(str(tmp_path))


def test_a_token_that_no_template_writes_is_no_proof_of_a_format(tmp_path: Path) -> None:
    tokenizer = FAMILIES["qwen 3"]()
    assert {"<tool_call>", "</tool_call>"} <= tokenizer.get_vocab().keys()
    turns = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>{% endfor %}"
    tokenizer.chat_template = turns
    tokenizer.save_pretrained(tmp_path)
    assert tool_parser_of(str(tmp_path)) == ("hermes", "its chat template knows no tools, so that there are no calls to read")
    tokenizer.chat_template = "{{ tools }}" + turns
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(RecipeError, match=r"auto, but the chat template of .* shows none of the known formats"):
        tool_parser_of(str(tmp_path))


def test_several_templates_of_one_model_are_looked_at_together(tmp_path: Path) -> None:
    several = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "<tool_call>"}]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": several}))
    assert tool_parser_of(str(tmp_path))[0] == "hermes"
    (tmp_path / "chat_template.jinja").write_text("[TOOL_CALLS]")
    assert tool_parser_of(str(tmp_path))[0] == "mistral", "a file of its own is what the tokenizer uses"
