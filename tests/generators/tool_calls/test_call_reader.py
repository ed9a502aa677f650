import pytest
from chat_tokenizers import make_tokenizer

from asyncrl.core.errors import RecipeError
from asyncrl.core.messages import MalformedCall, ToolCall
from asyncrl.generators.tool_calls.reader import ToolCallReader
from asyncrl.generators.vllm import vllm_parsers
from asyncrl.generators.vllm.vllm_parsers import REASONING, TOOL, check_parsers, own_parsers


@pytest.fixture(scope="module")
def reader() -> ToolCallReader:
    return ToolCallReader(make_tokenizer(), "hermes")


def call(body: str) -> str:
    return f"<tool_call>\n{body}\n</tool_call>"


ADD = '{"name": "add", "arguments": {"a": 1, "b": [2]}}'


def test_the_parsers_known_without_vllm_are_those_it_has() -> None:
    from vllm.reasoning import ReasoningParserManager
    from vllm.tool_parsers import ToolParserManager

    assert set(ToolParserManager.list_registered()) == own_parsers(TOOL)
    assert set(ReasoningParserManager.list_registered()) == own_parsers(REASONING)


def test_a_parser_of_a_plug_in_is_found_by_asking_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm_parsers, "own_parsers", lambda kind: frozenset({"other"}))
    check_parsers("hermes", None)


def test_reads_content_and_calls_in_order(reader: ToolCallReader) -> None:
    assert reader.read("The answer is 3.").calls == ()
    assert reader.read("The answer is 3.").content == "The answer is 3."
    two = reader.read("first " + call(ADD) + call('{"name": "now", "arguments": {}}'))
    assert two.content == "first "
    assert two.calls == (ToolCall("add", {"a": 1, "b": [2]}), ToolCall("now", {}))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('<tool_call>\n{"name": "add", "argum', "not JSON"),
        (call('{"name": "add", "arguments": {"a": 1}'), "not JSON"),
        (call('{"name": "add"}'), "needs a name and arguments"),
        (call('{"name": 7, "arguments": {}}'), "needs a name and arguments"),
        (call("add(1, 2)"), "not in the format hermes"),
        (call('{"name": "add", "arguments": "1"}'), "not a JSON object"),
        (call('{"name": "add", "arguments": [1]}'), "not a JSON object"),
        (call('{"name": "add", "arguments": {"a": "\\ud800"}}'), "surrogates not allowed"),
        (call('{"name": "add", "arguments": {"\\ud800": 1}}'), "surrogates not allowed"),
        (call('{"name": "\\ud800", "arguments": {}}'), "surrogates not allowed"),
        (call('{"name": "add", "arguments": {"a": ' + "[" * 100_000 + "]" * 100_000 + "}}"), "recursion"),
        ("<tool_call>" + "[" * 100_000, "recursion"),
        ("<tool_call>", "not in the format hermes"),
    ],
)
def test_an_unreadable_call_is_data(reader: ToolCallReader, text: str, problem: str) -> None:
    action = reader.read("so " + text)
    (malformed,) = action.calls
    assert isinstance(malformed, MalformedCall)
    assert malformed.text.encode()
    assert any(part in malformed.problem for part in problem.split("|"))
    assert action.content == "so "


def test_reads_another_family(reader: ToolCallReader) -> None:
    pythonic = ToolCallReader(make_tokenizer(), "pythonic")
    assert pythonic.read("[add(a=1)]").calls == (ToolCall("add", {"a": 1}),)
    assert pythonic.read("[add(a=2)]").calls == (ToolCall("add", {"a": 2}),)


def test_an_unknown_parser_is_refused_with_those_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RecipeError, match=r"model\.tool_parser: .*'hermess'.*hermes.*pythonic"):
        check_parsers("hermess", None)
    monkeypatch.setattr(vllm_parsers, "_all", lambda kind: frozenset())
    with pytest.raises(RecipeError, match=r"model\.reasoning_parser: .*'r1'.*deepseek_r1.*qwen3"):
        check_parsers("hermes", "r1")
