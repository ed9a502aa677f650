import asyncio
import json
import threading
from pathlib import Path
from typing import Any

import pytest
from chat_tokenizers import CHAT_ML, delta_ids, make_tokenizer, prompt_ids

from asyncrl.core.messages import Message, ToolSpec
from asyncrl.generators.chat_format import ChatFormat
from asyncrl.generators.chat_template import TemplateUnsuitable

TOOL = ToolSpec("add", "Adds.", {"type": "object", "properties": {"a": {"type": "integer"}}})
PROMPT = (Message("system", "Be brief."), Message("user", "1+2?"))
TURNS = ["<tool_call>\n{}\n</tool_call>", "let me\nsee", ""]
REPLIES = [(Message("tool", "3"),), (Message("tool", "4"), Message("tool", " five ")), (Message("user", "go on"),)]


@pytest.fixture(scope="module")
def chat() -> ChatFormat:
    return ChatFormat(make_tokenizer())


def test_a_row_grown_turn_by_turn_is_the_conversation_rendered_at_once(chat: ChatFormat) -> None:
    """Also the newline after each turn, which a template writes only once the next message is there."""
    row = prompt_ids(chat, PROMPT, (TOOL,))
    messages = [{"role": m.role, "content": m.content} for m in PROMPT]
    for turn, reply in zip(TURNS, REPLIES, strict=True):
        row += [*chat.tokenizer.encode(turn, add_special_tokens=False), chat.end_of_turn]
        row += delta_ids(chat, reply)
        messages += [{"role": "assistant", "content": turn}, *({"role": m.role, "content": m.content} for m in reply)]
        rendered = chat.tokenizer.apply_chat_template(
            messages, tools=[TOOL.as_template_input()], add_generation_prompt=True, tokenize=False
        )
        assert chat.decode(row) == rendered
        assert row == chat.tokenizer.encode(rendered, add_special_tokens=False)


def test_the_delta_begins_with_the_newline_that_ends_the_turn(chat: ChatFormat) -> None:
    assert chat.decode(delta_ids(chat, REPLIES[0])).startswith("\n<|im_start|>user\n<tool_response>\n3\n</tool_response>")


def test_the_row_keeps_the_tokens_as_they_were_sampled(chat: ChatFormat) -> None:
    """A template that trims old turns does not reach them."""
    trimming = ChatFormat(
        make_tokenizer(CHAT_ML.replace("message.content + '<|im_end|>", "(message.content | trim) + '<|im_end|>"))
    )
    assert delta_ids(trimming, REPLIES[0]) == delta_ids(chat, REPLIES[0])


def test_the_end_of_a_turn_is_no_part_of_its_text(chat: ChatFormat) -> None:
    ids = chat.tokenizer.encode("ok <tool_call>", add_special_tokens=False)
    assert chat.turn_text([*ids, chat.end_of_turn]) == chat.turn_text(ids) == "ok <tool_call>"
    assert chat.turn_text([]) == ""


def test_what_is_remembered_cannot_be_changed_by_a_caller(chat: ChatFormat) -> None:
    first = prompt_ids(chat, PROMPT)
    first.append(0)
    assert prompt_ids(chat, PROMPT) == first[:-1]
    assert prompt_ids(chat, PROMPT, (TOOL,)) != prompt_ids(chat, PROMPT)


@pytest.mark.parametrize(
    ("template", "problem"),
    [
        (None, "there is none"),
        ("{% for m in messages %}{{ m.role + ': ' + m.content + '\n' }}{% endfor %}", "does not begin with a special token"),
        ("{% for m in messages %}{{ m.role }}<|im_end|>{% endfor %}", "exactly once"),
        ("{% for m in messages %}{% if m.role == 'assistant' %}{{ m.content }}<|im_end|>{% endif %}{% endfor %}", "leaves out"),
        ("{% for m in messages %}{{ m.content }}<|im_end|>{% endfor %}", "not followed by the start of an assistant turn"),
    ],
)
def test_a_template_without_a_delta_is_refused_with_the_reason(template: str | None, problem: str) -> None:
    with pytest.raises(TemplateUnsuitable, match=problem):
        ChatFormat(make_tokenizer(template))


@pytest.mark.parametrize(
    ("template", "problem"),
    [
        ("{% for m in messages if m.role == 'tool' %}{{ raise_exception('none') }}{% endfor %}" + CHAT_ML, "none"),
        (
            CHAT_ML.replace("for message in messages", "for message in messages if message.role != 'tool'", 1),
            "leaves out the content",
        ),
        (CHAT_ML.replace("if tools", "if false"), "leaves out the tools"),
    ],
)
def test_a_template_that_knows_no_tools_is_refused_only_where_there_are_tools(template: str, problem: str) -> None:
    chat = ChatFormat(make_tokenizer(template))
    assert prompt_ids(chat, PROMPT) == prompt_ids(ChatFormat(make_tokenizer()), PROMPT)
    assert delta_ids(chat, REPLIES[2])
    with pytest.raises(TemplateUnsuitable, match=problem):
        prompt_ids(chat, PROMPT, (TOOL,))
    if "the tools" not in problem:
        with pytest.raises(TemplateUnsuitable, match=problem):
            delta_ids(chat, REPLIES[0])


def test_a_system_message_that_would_not_reach_the_prompt_is_refused() -> None:
    chat = ChatFormat(
        make_tokenizer(CHAT_ML.replace("for message in messages", "for message in messages if message.role != 'system'", 1))
    )
    assert prompt_ids(chat, PROMPT[1:])
    with pytest.raises(TemplateUnsuitable, match="leaves out the system message"):
        prompt_ids(chat, PROMPT)


def test_what_no_tokenizer_can_read_is_spelt_out(chat: ChatFormat) -> None:
    for ids in (prompt_ids, delta_ids):
        assert ids(chat, [Message("tool", "caf\udce9.txt")]) == ids(chat, [Message("tool", r"caf\udce9.txt")])


async def test_long_messages_are_tokenized_beside_the_event_loop_one_at_a_time() -> None:
    tokenizer = make_tokenizer()
    chat, render = ChatFormat(tokenizer), tokenizer.apply_chat_template
    long, short = [Message("user", "long " * 2_000)], [Message("user", "short")]
    threads: list[str] = []
    rendering, go_on = threading.Event(), threading.Event()

    def hold_the_long(turns: list[dict[str, str]], **options: Any) -> str:
        if turns[0]["content"] == long[0].content:
            threads.append(threading.current_thread().name)
            rendering.set()
            assert go_on.wait(60)
        return render(turns, **options)

    tokenizer.apply_chat_template = hold_the_long
    prompts = [asyncio.create_task(chat.prompt(long)) for _ in range(3)]
    assert await asyncio.to_thread(rendering.wait, 60)
    another = ChatFormat(make_tokenizer())
    assert await chat.prompt(short) == await another.prompt(short)
    assert await chat.delta(short) == await another.delta(short)
    go_on.set()
    assert [await prompt for prompt in prompts] == [await another.prompt(long)] * 3
    assert threads == ["tokenizing"], "rendered once, and remembered"


def test_a_template_that_asks_for_the_date_gets_the_same_one_every_day() -> None:
    today = "{{- '<|im_start|>system\\n' + strftime_now('%d %b %Y') + '<|im_end|>' -}}"
    chat = ChatFormat(make_tokenizer(today + CHAT_ML))
    assert chat.decode(prompt_ids(chat, PROMPT)).startswith("<|im_start|>system\n01 Jan 2026<|im_end|>")


def test_a_turn_ends_at_each_token_that_the_models_configuration_names(tmp_path: Path) -> None:
    tokenizer = make_tokenizer()
    tokenizer.add_tokens(["<|eom_id|>", "<|eot_id|>"], special_tokens=True)
    first, second = tokenizer.convert_tokens_to_ids(["<|eom_id|>", "<|eot_id|>"])
    tokenizer.save_pretrained(tmp_path)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [first, second]}))
    (tmp_path / "config.json").write_text(json.dumps({"eos_token_id": first, "model_type": "qwen3"}))
    chat = ChatFormat.load(str(tmp_path))
    assert chat.ends_of_turn == (chat.end_of_turn, first, second)
    ids = chat.tokenizer.encode("ok", add_special_tokens=False)
    assert {chat.turn_text([*ids, end]) for end in chat.ends_of_turn} == {"ok"}
    assert delta_ids(chat, REPLIES[0]) == delta_ids(ChatFormat(make_tokenizer()), REPLIES[0])


@pytest.mark.parametrize("name", ["chat_template.jinja", "additional_chat_templates/tool_use.jinja"])
def test_a_template_that_is_not_utf_8_is_named_and_not_the_tokenizer(tmp_path: Path, name: str) -> None:
    make_tokenizer().save_pretrained(tmp_path)
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_bytes("{{ 'été' }}".encode("latin-1"))
    with pytest.raises(TemplateUnsuitable, match=rf"the chat template .*{name} is not UTF-8.*; save it as UTF-8"):
        ChatFormat.load(str(tmp_path))


@pytest.mark.parametrize("named", ['"</s>"', "[1, null]", "{"])
def test_ends_that_are_no_ids_are_refused(tmp_path: Path, named: str) -> None:
    make_tokenizer().save_pretrained(tmp_path)
    (tmp_path / "generation_config.json").write_text(f'{{"eos_token_id": {named}}}')
    with pytest.raises(TemplateUnsuitable, match=r"generation_config\.json cannot be read"):
        ChatFormat.load(str(tmp_path))
