"""Templates as a recipe wants them: values of variables, another template, and one of its own for conversations with tools."""

import json
from pathlib import Path

import pytest
from chat_tokenizers import CHAT_ML, delta_ids, make_tokenizer, prompt_ids
from jinja2.sandbox import ImmutableSandboxedEnvironment

from asyncrl.core.errors import RecipeError
from asyncrl.core.messages import Message, ToolSpec
from asyncrl.core.recipe.schema import ModelConfig
from asyncrl.generators.chat_format import ChatFormat
from asyncrl.generators.chat_template import TemplateUnsuitable
from asyncrl.generators.template_choice import templates_of, variables_of, with_values
from asyncrl.run.models.template_facts import found_templates, template_text, write_templates

QUESTION = [Message("user", "1+2?")]
TOOL = ToolSpec("add", "Adds.", {"type": "object", "properties": {}})
THINKING = "{%- if add_generation_prompt and enable_thinking is defined and not enable_thinking %}{{ 'NOT ' }}{% endif %}"


def section(**keys: object) -> ModelConfig:
    return ModelConfig(path="some/model", **keys)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("template", "variables"),
    [
        ("{{ messages }}{{ tools }}{{ bos_token }}{{ strftime_now('%d') }}{{ raise_exception('no') }}", set()),
        ("{% if enable_thinking is defined %}on{% endif %}", {"enable_thinking"}),
        ("{% if not day is defined %}{% set day = 'Monday' %}{% endif %}{{ day }}", {"day"}),
        ("{% set effort = effort | default('low') %}{{ effort }}", {"effort"}),
        ("{% if messages[0] is string %}{% set said = messages[0] %}{% else %}{% set said = '' %}{% endif %}{{ said }}", set()),
        (
            "{% for turn in messages %}{% if loop.first %}{% continue %}{% endif %}{{ turn.content }}{{ style }}{% endfor %}",
            {"style"},
        ),
        ("{% macro shown(text) %}{{ text if text is defined }}{% endmacro %}{{ shown(messages) }}", set()),
        ("{% generation %}{{ mood }}{% endgeneration %}", {"mood"}),
        ("{% if %}", set()),
    ],
)
def test_a_recipe_may_set_what_a_template_reads_and_is_not_given(template: str, variables: set[str]) -> None:
    assert variables_of(template) == variables


@pytest.mark.parametrize(
    "value", [False, True, 0, -1.5, 1e-7, 'it\'s "so"\n{{ x }} é 😀', ["a", {"b": None}], {"key": [1, True]}, None]
)
@pytest.mark.parametrize("start", ["", "\n", "  \r\n"])
def test_a_value_is_what_the_template_reads_and_nothing_else_changes(value: object, start: str) -> None:
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    template = start + "{% macro m() %}{{ x | tojson }}{% endmacro %}{% for each in [1] %}{{ x | tojson }}{% endfor %}{{ m() }}"
    rendered = environment.from_string(with_values(template, {"y": 1, "x": value})).render()
    assert rendered == environment.from_string(template).render(x=value)
    assert with_values(with_values(template, {"x": value}), {"x": value}) == with_values(template, {"x": value})
    if value is not None:
        told = environment.from_string(with_values(template, {"x": "of the recipe"})).render(x=value)
        assert told == environment.from_string(template).render(x=value), "whoever renders it can still say otherwise"


def test_a_value_holds_for_the_prompt_and_for_what_follows_a_turn() -> None:
    tokenizer = make_tokenizer(CHAT_ML + THINKING)
    off, on = ({"enable_thinking": value} for value in (False, True))
    for say in (lambda chat: prompt_ids(chat, QUESTION), lambda chat: delta_ids(chat, QUESTION)):
        default = say(ChatFormat(tokenizer))
        assert say(ChatFormat(tokenizer, section(chat_template_kwargs=on))) == default
        chat = ChatFormat(tokenizer, section(chat_template_kwargs=off))
        assert chat.decode(say(chat)) == chat.decode(default) + "NOT "
    usual = tokenizer.apply_chat_template(
        [{"role": "user", "content": "1+2?"}], add_generation_prompt=True, tokenize=False, **off
    )
    assert chat.decode(prompt_ids(chat, QUESTION)) == usual


@pytest.mark.parametrize(
    ("template", "said"),
    [
        (CHAT_ML + THINKING, "reads no variable 'enable_thinkin'; it reads enable_thinking"),
        (CHAT_ML, "it reads none that can be set"),
    ],
)
def test_a_variable_that_no_template_reads_is_refused_with_those_that_it_does(template: str, said: str) -> None:
    with pytest.raises(RecipeError, match=said) as caught:
        ChatFormat(make_tokenizer(template), section(chat_template_kwargs={"enable_thinkin": False}))
    assert caught.value.place == "model.chat_template_kwargs.enable_thinkin"


def test_what_a_run_gives_a_template_cannot_be_set() -> None:
    with pytest.raises(RecipeError, match="reads no variable 'messages'"):
        templates_of(CHAT_ML, section(chat_template_kwargs={"messages": []}))


def named(with_tools: str) -> ChatFormat:
    tokenizer = make_tokenizer()
    tokenizer.chat_template = {"default": CHAT_ML, "tool_use": with_tools}
    return ChatFormat(tokenizer)


def test_prompt_and_what_follows_come_from_the_same_of_two_templates() -> None:
    one, two = ChatFormat(make_tokenizer()), named(CHAT_ML.replace("assistant\\n", "assistant\\nT "))
    answer = [Message("tool", "3")]
    assert prompt_ids(two, QUESTION) == prompt_ids(one, QUESTION)
    assert delta_ids(two, answer) == delta_ids(one, answer)
    with_tools = ChatFormat(make_tokenizer(two.templates["tool_use"]))
    assert prompt_ids(two, QUESTION, [TOOL]) == prompt_ids(with_tools, QUESTION, [TOOL])
    assert delta_ids(two, answer, [TOOL]) == delta_ids(with_tools, answer)
    assert delta_ids(two, answer, [TOOL]) != delta_ids(two, answer)
    assert two.turn_start([TOOL]) == with_tools.turn_start() != two.turn_start()


def test_each_template_has_its_own_end_of_a_turn_and_sampling_stops_at_both() -> None:
    chat = named(CHAT_ML.replace("<|im_end|>", "<pad>"))
    assert [chat.decode([end]) for end in chat.ends_of_turn] == ["<|im_end|>", "<pad>"]
    assert chat.decode(delta_ids(chat, QUESTION, after=9)).startswith("<|im_end|>")
    assert chat.decode(delta_ids(chat, QUESTION, [TOOL], after=9)).startswith("<pad>")


def test_a_template_for_tools_that_does_not_fit_is_refused_only_where_there_are_tools() -> None:
    chat = named("{{ messages[0].content }}")
    assert prompt_ids(chat, QUESTION) == prompt_ids(ChatFormat(make_tokenizer()), QUESTION)
    for _ in range(2):
        with pytest.raises(TemplateUnsuitable, match="the chat template tool_use of"):
            prompt_ids(chat, QUESTION, [TOOL])


def test_templates_without_a_default_are_refused_with_their_names() -> None:
    tokenizer = make_tokenizer()
    tokenizer.chat_template = {"tool_use": CHAT_ML, "rag": CHAT_ML}
    with pytest.raises(TemplateUnsuitable, match="there are only tool_use, rag, and none is named default"):
        ChatFormat(tokenizer)
    assert ChatFormat(tokenizer, section(chat_template=CHAT_ML)).templates == {"default": CHAT_ML}


def saved(folder: Path, **further: str) -> Path:
    tokenizer = make_tokenizer(CHAT_ML + THINKING)
    if further:
        tokenizer.chat_template = {"default": CHAT_ML + THINKING, **further}
    tokenizer.save_pretrained(folder)
    return folder


def test_the_exported_model_has_the_templates_that_it_was_trained_with(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    model = section(chat_template_kwargs={"enable_thinking": False})
    folder = saved(tmp_path, tool_use="tools " + CHAT_ML)
    trained = ChatFormat.load(str(folder), model)
    write_templates(folder, model)
    write_templates(folder, model)
    exported = AutoTokenizer.from_pretrained(folder)
    assert exported.chat_template == trained.templates
    turns = [{"role": "user", "content": "1+2?"}]
    assert exported.apply_chat_template(turns, add_generation_prompt=True, tokenize=False).endswith("NOT ")
    assert not exported.apply_chat_template(turns, add_generation_prompt=True, tokenize=False, enable_thinking=True).endswith(
        "NOT "
    )
    assert prompt_ids(ChatFormat.load(str(folder), model), QUESTION) == prompt_ids(trained, QUESTION)


def test_a_template_of_the_recipe_takes_the_place_of_all_of_the_models_own(tmp_path: Path) -> None:
    folder = saved(tmp_path / "model", tool_use="tools " + CHAT_ML)
    config = folder / "tokenizer_config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "chat_template": "of another time"}))
    file = tmp_path / "mine.jinja"
    file.write_text("mine " + CHAT_ML, encoding="utf-8-sig")  # with a byte order mark, which is no part of the text
    model = section(chat_template=template_text(str(file)))
    assert ChatFormat.load(str(folder), model).templates == {"default": "mine " + CHAT_ML}
    write_templates(folder, model)
    assert found_templates(folder) == ChatFormat.load(str(folder)).templates == {"default": "mine " + CHAT_ML}
    assert "chat_template" not in json.loads(config.read_text())


def test_templates_in_a_configuration_are_found_by_name(tmp_path: Path) -> None:
    several = [{"name": "default", "template": CHAT_ML}, {"name": "tool_use", "template": "T" + CHAT_ML}]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": several}))
    assert found_templates(tmp_path) == {"default": CHAT_ML, "tool_use": "T" + CHAT_ML}


@pytest.mark.parametrize(
    ("content", "problem"), [(None, "No such file"), (b"no braces", "holds no Jinja template"), (b"{{ \xff }}", "cannot be read")]
)
def test_a_file_that_holds_no_template_is_refused(tmp_path: Path, content: bytes | None, problem: str) -> None:
    file = tmp_path / "mine.jinja"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(RecipeError, match=problem) as caught:
        template_text(str(file))
    assert caught.value.place == "model.chat_template"
    assert template_text("{{ messages }}") == "{{ messages }}", "the text itself"
