# ruff: noqa: RUF001 - DeepSeek writes its control tokens with fullwidth bars
"""Turns of many model families, each with what a person would say it is: right calls, a malformed call, or an answer."""

import json
from collections.abc import Callable, Iterator
from typing import Any

from asyncrl.core.messages import ToolSpec

Arguments = dict[str, Any]
Calls = list[tuple[str, Arguments]]
MALFORMED = "malformed"

TOOLS = [
    ToolSpec(
        "add",
        "Adds.",
        {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}, "required": ["a", "b"]},
    ),
    ToolSpec("say", "Says.", {"type": "object", "properties": {"t": {"type": "string"}}, "required": ["t"]}),
    ToolSpec("now", "Tells the time.", {"type": "object", "properties": {}}),
    ToolSpec(
        "book",
        "Books.",
        {
            "type": "object",
            "properties": {
                "price": {"type": "number"},
                "paid": {"type": "boolean"},
                "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
                "seats": {"type": "array", "items": {"type": "integer"}},
                "who": {"$ref": "#/$defs/Person"},
                "kind": {"$ref": "#/$defs/Kind"},
            },
            "$defs": {
                "Person": {"type": "object", "properties": {"age": {"type": "integer"}}},
                "Kind": {"type": "integer", "enum": [1, 2]},
            },
        },
    ),
]
VALUES: dict[str, tuple[str, Arguments]] = {
    "integers": ("add", {"a": 1, "b": -20}),
    "text": ("say", {"t": "hi there"}),
    "no arguments": ("now", {}),
    "a number and a truth": ("book", {"price": 2.5, "paid": True}),
    "a list": ("book", {"seats": [1, 2, 3]}),
    "behind a reference": ("book", {"who": {"age": 41}, "kind": 2}),
    "digits as text": ("say", {"t": "0042"}),
    "letters of many scripts": ("say", {"t": "é 你好 😀"}),
    "several lines": ("say", {"t": "one\ntwo\n\nfour"}),
    "quotes and brackets": ("say", {"t": 'a "b" {c} [d] \\e'}),
    "truth as text": ("say", {"t": "true"}),
}


def _json(name: str, arguments: Arguments, key: str = "arguments") -> str:
    return json.dumps({"name": name, key: arguments}, ensure_ascii=False)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _hermes(name: str, arguments: Arguments) -> str:
    return f"<tool_call>\n{_json(name, arguments)}\n</tool_call>"


def _qwen_coder(name: str, arguments: Arguments) -> str:
    parameters = "".join(f"<parameter={key}>\n{_text(value)}\n</parameter>\n" for key, value in arguments.items())
    return f"<tool_call>\n<function={name}>\n{parameters}</function>\n</tool_call>"


def _seed(name: str, arguments: Arguments) -> str:
    parameters = "".join(f"<parameter={key}>{_text(value)}</parameter>\n" for key, value in arguments.items())
    return f"<seed:tool_call>\n<function={name}>\n{parameters}</function>\n</seed:tool_call>"


def _glm(name: str, arguments: Arguments) -> str:
    pairs = "".join(f"<arg_key>{key}</arg_key>\n<arg_value>{_text(value)}</arg_value>\n" for key, value in arguments.items())
    return f"<tool_call>{name}\n{pairs}</tool_call>"


def _minimax(name: str, arguments: Arguments) -> str:
    parameters = "".join(f'<parameter name="{key}">{_text(value)}</parameter>\n' for key, value in arguments.items())
    return f'<minimax:tool_call>\n<invoke name="{name}">\n{parameters}</invoke>\n</minimax:tool_call>'


def _llama(name: str, arguments: Arguments) -> str:
    return _json(name, arguments, "parameters")


def _mistral(name: str, arguments: Arguments) -> str:
    return f"[TOOL_CALLS]{name}[ARGS]{json.dumps(arguments, ensure_ascii=False)}"


def _deepseek_v3(name: str, arguments: Arguments) -> str:
    body = f"function<｜tool▁sep｜>{name}\n```json\n{json.dumps(arguments, ensure_ascii=False)}\n```"
    return f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>{body}<｜tool▁call▁end｜><｜tool▁calls▁end｜>"


def _deepseek_v31(name: str, arguments: Arguments) -> str:
    body = f"{name}<｜tool▁sep｜>{json.dumps(arguments, ensure_ascii=False)}"
    return f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>{body}<｜tool▁call▁end｜><｜tool▁calls▁end｜>"


def _kimi(name: str, arguments: Arguments) -> str:
    body = f"functions.{name}:0<|tool_call_argument_begin|>{json.dumps(arguments, ensure_ascii=False)}"
    return f"<|tool_calls_section_begin|><|tool_call_begin|>{body}<|tool_call_end|><|tool_calls_section_end|>"


def _pythonic(name: str, arguments: Arguments) -> str:
    return f"[{name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})]"


def _xlam(name: str, arguments: Arguments) -> str:
    return f"[{_json(name, arguments)}]"


WRITERS: dict[str, Callable[[str, Arguments], str]] = {
    "hermes": _hermes,
    "qwen3_coder": _qwen_coder,
    "qwen3_xml": _qwen_coder,
    "seed_oss": _seed,
    "glm45": _glm,
    "glm47": _glm,
    "minimax_m2": _minimax,
    "llama3_json": _llama,
    "mistral": _mistral,
    "deepseek_v3": _deepseek_v3,
    "deepseek_v31": _deepseek_v31,
    "kimi_k2": _kimi,
    "pythonic": _pythonic,
    "xlam": _xlam,
}
TYPED_BY_TEXT = ("qwen3_coder", "qwen3_xml", "seed_oss", "glm45", "glm47", "minimax_m2")
"""Formats that write each argument as text; the tool's schema says what it means."""
IN_TAGS = ("hermes", *TYPED_BY_TEXT)
"""Formats that mark each call, so that one that is broken says nothing of its neighbours."""

ANSWERS = {
    "words": "The answer is 3.",
    "an object": '{"answer": 3}',
    "a list": "[1, 2, 3]",
    "a name": '{"name": "Ann", "age": 41}',
    "a fence": '```json\n{"answer": [1, 2]}\n```',
    "code": "def add(a, b):\n    return a + b",
    "nothing": "",
}


def corpus() -> Iterator[tuple[str, str, str, Calls | str]]:
    """Yield parser, what the turn is, the turn, and what it holds: calls (none: an answer), or ``MALFORMED``."""
    for parser, write in WRITERS.items():
        for what, (name, arguments) in VALUES.items():
            yield parser, what, write(name, arguments), [(name, arguments)]
        for what, answer in ANSWERS.items():
            yield parser, f"an answer: {what}", answer, []
        whole = write("add", {"a": 1, "b": 2})
        yield parser, "cut within the arguments", whole[: whole.rindex("2") - 3], MALFORMED
        yield parser, "blank lines around", f"\n\n{whole}\n", [("add", {"a": 1, "b": 2})]
        if parser not in ("pythonic", "xlam"):
            yield parser, "words before", f"I add them.\n{whole}", [("add", {"a": 1, "b": 2})]
    for parser in IN_TAGS:
        good, other = WRITERS[parser]("say", {"t": "a"}), WRITERS[parser]("add", {"a": 3, "b": 4})
        begin = good[: good.index(">") + 1]
        end = begin.replace("<", "</")
        yield parser, "two calls", f"{good}\n{other}", [("say", {"t": "a"}), ("add", {"a": 3, "b": 4})]
        yield (
            parser,
            "the end mark in a text",
            WRITERS[parser]("say", {"t": f"write {end} so"}),
            [("say", {"t": f"write {end} so"})],
        )
        yield (
            parser,
            "the begin mark in a text",
            WRITERS[parser]("say", {"t": f"write {begin} so"}),
            [("say", {"t": f"write {begin} so"})],
        )
        yield parser, "no call between marks", f"{begin}\nadd them\n{end}", MALFORMED
    for parser in ("llama3_json", "xlam"):
        whole = _json("add", {"a": 1, "b": 2}, "parameters" if parser == "llama3_json" else "arguments")
        yield parser, "a brace is missing", whole[:-1], MALFORMED
        yield parser, "a trailing comma", whole.replace("2}}", "2,}}"), MALFORMED
        yield parser, "Python's quotes", whole.replace('"', "'"), MALFORMED
    for text in ("[add(a=1, b=2), say(t=]", "[add(1, 2)]", "[add(a=1, b=2)", "[add(a=1,, b=2)]", "add(a=1, b=2"):
        yield "pythonic", f"broken: {text}", text, MALFORMED
    yield "pythonic", "two", "[add(a=1, b=2), say(t='hi')]", [("add", {"a": 1, "b": 2}), ("say", {"t": "hi"})]
    yield (
        "llama3_json",
        "two by semicolon",
        f"{_llama('now', {})}; {_llama('say', {'t': 'x'})}",
        [("now", {}), ("say", {"t": "x"})],
    )
    yield "mistral", "a list", f"[TOOL_CALLS] {_xlam('say', {'t': '[TOOL_CALLS]'[:-1]})}", [("say", {"t": "[TOOL_CALLS"})]
    yield "mistral", "two", _mistral("now", {}) + _mistral("say", {"t": "x"}), [("now", {}), ("say", {"t": "x"})]
    yield "mistral", "a brace is missing", '[TOOL_CALLS]add[ARGS]{"a": 1, "b": 2', MALFORMED
    for key, value in (("as text", '"{\\"a\\": 1, \\"b\\": 2}"'), ("null", "null")):
        text = f'<tool_call>\n{{"name": "{"now" if key == "null" else "add"}", "arguments": {value}}}\n</tool_call>'
        yield "hermes", f"arguments {key}", text, [("now", {})] if key == "null" else [("add", {"a": 1, "b": 2})]
    yield from _others_spellings()
    yield from _losses()


def _others_spellings() -> Iterator[tuple[str, str, str, Calls | str]]:
    """Yield turns as models write them that were not trained on exactly this format."""
    both: Calls = [("add", {"a": 1, "b": 2}), ("now", {})]
    broken = '{"name": "now", "arguments": {}'
    mark = "the [TOOL_CALLS] mark"
    yield "mistral", "the mark in a text", _mistral("say", {"t": mark}), [("say", {"t": mark})]
    yield "mistral", "the mark in a text of a list", f"[TOOL_CALLS][{_json('say', {'t': mark})}]", [("say", {"t": mark})]
    yield "mistral", "words after", _mistral("now", {}) + " and so on", MALFORMED
    yield "mistral", "a list without its end", f"[TOOL_CALLS][{_json('now', {})}", MALFORMED
    yield "xlam", "a list without its end", f"[{_json('add', {'a': 1, 'b': 2})}, {_json('now', {})}", MALFORMED
    yield "xlam", "a broken one alone", f"[{broken}]", MALFORMED
    yield "xlam", "an answer after a list that is none", '[one, {"answer": 1}', []
    for parser in ("hermes", *TYPED_BY_TEXT):
        whole = WRITERS[parser]("add", {"a": 1, "b": 2})
        end = whole[whole.rindex("<") :]
        yield parser, "an end without a beginning", f'{{"name": "add", "arguments": {{"a": 1, "b": 2}}}}\n{end}', MALFORMED
    for parser in ("deepseek_v3", "deepseek_v31", "kimi_k2"):
        first, second = (WRITERS[parser](name, arguments) for name, arguments in both)
        yield parser, "two sections", f"{first}\n{second}", both
        yield parser, "JSON on several lines", first.replace('{"a": 1, "b": 2}', '{\n  "a": 1,\r\n  "b": 2\n}'), both[:1]
        yield parser, "no section around the call", first[first.index(">") + 1 : first.rindex("<")], MALFORMED
    for text in ("I add: [add(a=1, b=2)]", "```python\n[add(a=1, b=2)]\n```"):
        yield "pythonic", f"not alone: {text}", text, MALFORMED
    for text in ("See [the sum](add.md).", "values[add] (see above)", "```python\nx = [f(y) for y in z]\n```"):
        yield "pythonic", f"an answer: {text}", text, []
    yield "llama3_json", "its other format", '<function=add>{"a": 1, "b": 2}</function>', MALFORMED
    yield "llama3_json", "an answer with a tag", '<function="x">, as <function=f>', []


def _losses() -> Iterator[tuple[str, str, str, Calls | str]]:
    """Yield turns of which vLLM's parsers drop a part without a word."""
    for parser, write in WRITERS.items():
        whole = write("add", {"a": 1, "b": 2})
        twice = next(whole.replace(b, a) for b, a in (('"b"', '"a"'), ("=b>", "=a>"), (">b<", ">a<"), ("b=", "a=")) if b in whole)
        yield parser, "an argument twice", twice, MALFORMED
        if '"arguments":' in whole:
            two = whole.replace('"arguments":', '"parameters": {"c": 3}, "arguments":', 1)
            yield parser, "arguments under two names", two, MALFORMED
    whole = _json("add", {"a": 1, "parameters": 2, "arguments": 3, "name": "x"})
    yield "xlam", "arguments of these names", whole, [("add", {"a": 1, "parameters": 2, "arguments": 3, "name": "x"})]
    two = '{"type": "function", "function": {"name": "add", "parameters": {"c": 3}, "arguments": {"a": 1}}}'
    yield "xlam", "arguments under two names in a frame", two, MALFORMED
    yield "xlam", "arguments under two names in a list", f"[{_json('now', {})}, {two}]", MALFORMED
    yield "hermes", "a name twice", '<tool_call>\n{"name": "add", "name": "now", "arguments": {}}\n</tool_call>', MALFORMED
    yield (
        "xlam",
        "an argument twice in a list",
        f"[{_json('now', {})}, " + '{"name": "say", "arguments": {"t": "", "t": "x"}}]',
        MALFORMED,
    )
    yield "xlam", "an answer with a key twice", '{"answer": 1, "answer": 2}', []
    for parser in TYPED_BY_TEXT:
        whole = WRITERS[parser]("add", {"a": 1, "b": 2})
        end = "</arg_value>" if "glm" in parser else "</parameter>"
        yield parser, "a value without its end", whole.replace(end, "", 1), MALFORMED
        yield parser, "the last value without its end", end.join(whole.split(end)[:2]) + whole.split(end)[2], MALFORMED
        text = f"see {'<arg_value>' if 'glm' in parser else '<parameter=x>'} and {end} here"
        yield parser, "marks in a text", WRITERS[parser]("say", {"t": text}), [("say", {"t": text})]
    for parser in ("glm45", "glm47"):
        whole = _glm("add", {"a": 1, "b": 2}).replace("<arg_key>b", "<arg_key>c</arg_key>\n<arg_key>b")
        yield parser, "a name without a value", whole, MALFORMED
    for parser in ("qwen3_coder", "qwen3_xml", "seed_oss"):
        whole = WRITERS[parser]("add", {"a": 1, "b": 2})
        yield (
            parser,
            "an argument twice, without marks around",
            whole[whole.index("<function") : whole.rindex("\n")].replace("=b>", "=a>"),
            MALFORMED,
        )
