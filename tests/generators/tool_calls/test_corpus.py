"""Turns of model families are told apart as a person would tell them: calls, malformed calls and answers."""

from typing import Any

import pytest
from calls_corpus import IN_TAGS, MALFORMED, TOOLS, TYPED_BY_TEXT, WRITERS, Calls, corpus
from chat_tokenizers import make_tokenizer
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.core.messages import MalformedCall, ToolCall
from asyncrl.envs.base import Action
from asyncrl.generators.tool_calls.blocks import blocks
from asyncrl.generators.tool_calls.formats import format_named
from asyncrl.generators.tool_calls.reader import ToolCallReader
from asyncrl.generators.tool_calls.repeated import unpaired

_MARKS = (  # each family's, which its parser looks for in the vocabulary
    *("<|python_tag|>", "[TOOL_CALLS]", "[ARGS]", "<tool_call>", "</tool_call>", "<think>", "</think>"),
    *("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"),  # noqa: RUF001
    *("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>", "<|tool_call_argument_begin|>"),
    *("<|tool_call_end|>", "<minimax:tool_call>", "</minimax:tool_call>", "<seed:tool_call>", "</seed:tool_call>"),
    *("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
)


@pytest.fixture(scope="module")
def readers() -> dict[str, ToolCallReader]:
    tokenizer = make_tokenizer()
    tokenizer.add_tokens(list(_MARKS))
    return {parser: ToolCallReader(tokenizer, parser).knowing(TOOLS) for parser in WRITERS}


def held(action: Action) -> Calls | str:
    if any(isinstance(call, MalformedCall) for call in action.calls):
        return MALFORMED
    return [(call.name, call.arguments) for call in action.calls if isinstance(call, ToolCall)]


@pytest.mark.parametrize("parser", WRITERS)
def test_each_turn_is_what_a_person_would_say_it_is(readers: dict[str, ToolCallReader], parser: str) -> None:
    wrong = []
    for which, what, text, expected in corpus():
        if which != parser:
            continue
        action = readers[parser].read(text)
        if held(action) != expected:
            wrong.append(f"{what}: {text!r} is {expected}, but was read as {action.calls}")
        elif not expected:
            assert action.content == text
    assert not wrong, "\n".join(wrong)


def test_the_corpus_is_large() -> None:
    assert len(list(corpus())) >= 300


@pytest.mark.parametrize("parser", IN_TAGS)
def test_a_broken_call_leaves_the_good_ones_beside_it(readers: dict[str, ToolCallReader], parser: str) -> None:
    write = WRITERS[parser]
    good, cut = write("say", {"t": "a"}), write("add", {"a": 1, "b": 2})
    begin = good[: good.index(">") + 1]
    for broken in (f"{begin}\nadd them\n{begin.replace('<', '</')}", cut[: cut.rindex("2") - 3]):
        first, second, third = readers[parser].read(f"So: {good}\n{broken}\n{good}").calls
        assert first == third == ToolCall("say", {"t": "a"})
        assert isinstance(second, MalformedCall)


IN_SECTIONS = {
    "deepseek_v3": ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"),  # noqa: RUF001
    "deepseek_v31": ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"),  # noqa: RUF001
    "kimi_k2": ("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>", "<|tool_call_end|>"),
}


@pytest.mark.parametrize("parser", IN_SECTIONS)
def test_a_broken_call_of_a_section_leaves_the_good_ones(readers: dict[str, ToolCallReader], parser: str) -> None:
    begin, end, each, each_end = IN_SECTIONS[parser]

    def call(name: str, **arguments: Any) -> str:
        return WRITERS[parser](name, arguments).removeprefix(begin).removesuffix(end)

    said, added = ToolCall("say", {"t": "a"}), call("add", a=1, b=2)
    good = call("say", t="a")
    cut = added[: added.rindex("2") - 3]
    for broken in (cut, cut + each_end, f"{each}add them{each_end}", added.replace("{", "")):
        action = readers[parser].read(f"So: {begin}{good}\n{broken}{good}{end}")
        first, second, third = action.calls
        assert (action.content, first, third) == ("So: ", said, said), broken
        assert isinstance(second, MalformedCall), broken
        assert second.text.strip() == broken.strip()
    for text in (f"write {each} so", f"write {each_end}", f"{end} or {begin}", "```json\n{}\n```"):
        found = readers[parser].read(f"{begin}{good}{call('say', t=text)}{good}{end}").calls
        assert found[0] == found[-1] == said, text
    first, second = readers[parser].read(f"{begin}{good}{good}").calls
    assert first == said
    assert isinstance(second, MalformedCall), "the section does not end"


@pytest.mark.parametrize(
    "broken", ["add(a=1,, b=2)", "add(1, 2)", "add(a=1", "add(a=[1, b=2)", "add(a=1, b=x)", "add a, b", "add(a=1 b=2)"]
)
def test_a_broken_call_of_a_list_leaves_the_good_ones(readers: dict[str, ToolCallReader], broken: str) -> None:
    good = "say(t='x, y(z) ] it\\'s \"')"
    calls = readers["pythonic"].read(f"[{good}, {broken}, {good}]").calls
    assert calls[0] == calls[-1] == ToolCall("say", {"t": "x, y(z) ] it's \""})
    assert {type(call) for call in calls[1:-1]} == {MalformedCall}


@pytest.mark.parametrize(
    ("parser", "text"),
    [
        ("llama3_json", "GOOD; BROKEN; GOOD"),
        ("llama3_json", "So:\nGOOD\nBROKEN\nGOOD"),
        ("xlam", "[GOOD, BROKEN, GOOD]"),
        ("xlam", "[GOOD,\n BROKEN,\n GOOD\n]\n"),
        ("mistral", "[TOOL_CALLS] [GOOD, BROKEN, GOOD]"),
        ("mistral", '[TOOL_CALLS]say[ARGS]{"t": "a"}[TOOL_CALLS]now[ARGS]{[TOOL_CALLS][GOOD]'),
    ],
)
@pytest.mark.parametrize(
    "broken", ['{"name": "now", "arguments": {}', '{"name": "now", "arguments": {"a" 1}}', "{'name': 'now'}"]
)
def test_a_broken_call_of_json_leaves_the_good_ones(
    readers: dict[str, ToolCallReader], parser: str, text: str, broken: str
) -> None:
    text = text.replace("GOOD", '{"name": "say", "arguments": {"t": "a"}}').replace("BROKEN", broken)
    first, second, third = readers[parser].read(text).calls
    assert first == third == ToolCall("say", {"t": "a"})
    assert isinstance(second, MalformedCall)
    assert "now" in second.text


def has_a_mark(text: str) -> bool:
    """Whether a text has what formats mark calls with: there the call may count as malformed."""
    return any(mark in text for mark in (*_MARKS, "<parameter"))


VALUE = st.text(st.characters(blacklist_categories=["Cs", "Cc"], blacklist_characters="\ufdd0\ufdd1\ufdd3"), max_size=40)


@pytest.mark.parametrize("parser", [parser for parser in WRITERS if parser not in TYPED_BY_TEXT])
@given(text=VALUE, number=st.integers(-(10**18), 10**18))
def test_what_a_format_writes_is_read_back(readers: dict[str, ToolCallReader], parser: str, text: str, number: int) -> None:
    call: dict[str, Any] = {"a": number, "b": 2}
    assert held(readers[parser].read(WRITERS[parser]("add", call))) == [("add", call)]
    read = held(readers[parser].read(WRITERS[parser]("say", {"t": text})))
    assert read == [("say", {"t": text})] or (read == MALFORMED and has_a_mark(text))


@pytest.mark.parametrize("parser", TYPED_BY_TEXT)
@given(text=VALUE, number=st.integers(-(10**18), 10**18))
def test_arguments_that_are_written_as_text_get_their_types(
    readers: dict[str, ToolCallReader], parser: str, text: str, number: int
) -> None:
    call: dict[str, Any] = {"a": number, "b": 2}
    assert held(readers[parser].read(WRITERS[parser]("add", call))) == [("add", call)]
    (read,) = readers[parser].read(WRITERS[parser]("say", {"t": text})).calls
    if isinstance(read, ToolCall):
        assert read.arguments["t"].strip() == text.strip()
    else:
        assert has_a_mark(text)


@pytest.mark.parametrize("parser", WRITERS)
@pytest.mark.parametrize("text", [*_MARKS, "<parameter=", "<parameter=t>", '<parameter name="t">', "</parameter>", "</function>"])
def test_a_value_that_has_a_mark_in_it_is_read_back_or_malformed(
    readers: dict[str, ToolCallReader], parser: str, text: str
) -> None:
    assert held(readers[parser].read(WRITERS[parser]("say", {"t": text}))) in ([("say", {"t": text})], MALFORMED)


@pytest.mark.parametrize("depth", [200, 400, 600, 800, 900, 950, 980])
@pytest.mark.parametrize("parser", [parser for parser in WRITERS if parser != "pythonic"])
def test_arguments_of_any_depth_are_a_call_or_malformed_and_never_an_error(
    readers: dict[str, ToolCallReader], parser: str, depth: int
) -> None:
    """Some depths can be parsed, and are too deep for what comes after it."""
    nested = "[" * depth + "]" * depth
    text = WRITERS[parser]("book", {"seats": "NESTED"}).replace('"NESTED"', nested).replace("NESTED", nested)
    assert readers[parser].read(text).calls


@pytest.mark.timeout(60)
@pytest.mark.parametrize("parser", TYPED_BY_TEXT)
def test_what_would_be_lost_is_found_in_a_time_that_grows_with_the_turn(parser: str) -> None:
    """Of 100,000 arguments that never end, before one that does."""
    known = format_named(parser)
    assert known is not None
    assert known.value is not None
    whole = WRITERS[parser]("add", {"a": 1, "b": 2})
    name = whole[whole.index("<parameter") if "<parameter" in whole else whole.index("<arg_key>") : whole.index("1")]
    found = [*blocks(whole.replace(name, name * 100_000, 1), known)]
    assert [bool(unpaired(block.readable, known.value)) for block in found] == [True]
