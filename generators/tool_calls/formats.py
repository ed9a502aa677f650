"""The formats in which model families write tool calls: which vLLM parser reads each, by which marks a chat template gives it
away, and where a call begins and ends in the text.

The table is in the order in which it is searched: a format whose marks include those of another one comes first.
"""

import msgspec


class ValueMarks(msgspec.Struct, frozen=True):
    """What surrounds the values of arguments that are written as text, as regular expressions.

    Attributes:
        begin: what comes before a value.
        end: what comes after it, as it stands in the text.
        after: what must follow the end, so that the same text within a value ends nothing.
        call: what follows the mark that begins a call; no value holds both.
        name: what names an argument; the name is its group.
        function: what names the function of a call, of which some formats have several between the marks.
    """

    begin: str
    end: str
    after: str
    call: str
    name: str
    function: str


class CallFormat(msgspec.Struct, frozen=True):
    """One format of tool calls.

    Attributes:
        parsers: names of the vLLM parsers that read it; the first is the one that is chosen.
        marks: texts that a model's chat template holds all of.
        begin: the text that begins a call, or the list of a turn's calls.
        end: the text that ends what ``begin`` began; empty where calls end with their JSON.
        without: texts that a template of this format does not hold.
        json: whether ``begin`` and ``end`` enclose JSON values: they tell where a call ends even if ``end`` is missing.
        by_tokens: whether the parser looks for ``begin`` and ``end`` among the tokenizer's tokens, and does without neither.
        value: what surrounds the value of an argument, where values are text; None where they are JSON.
        each: the text that begins each call within the list that ``begin`` begins; empty if there is none.
    """

    parsers: tuple[str, ...]
    marks: tuple[str, ...]
    begin: str
    end: str
    without: tuple[str, ...] = ()
    json: bool = False
    by_tokens: bool = False
    value: ValueMarks | None = None
    each: str = ""

    @property
    def single(self) -> bool:
        """Whether ``begin`` and ``end`` enclose one call, not the list of a turn's calls."""
        return self.json or self.value is not None

    @property
    def parser(self) -> str:
        """Name of the vLLM parser that is chosen for this format."""
        return self.parsers[0]


_DEEPSEEK_EACH = "<｜tool▁call▁begin｜>"  # noqa: RUF001
_DEEPSEEK = ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>")  # noqa: RUF001 - DeepSeek writes fullwidth bars
_TAG = ("<tool_call>", "</tool_call>")
_PARAMETER = ValueMarks(
    begin=r"<parameter=[^>\n]+>",
    end="</parameter>",
    after=r"\s*(?:<parameter=|</function>)",
    call=r"\s*<function=",
    name=r"<parameter=([^>\n]+)>",
    function=r"<function=",
)
_NAMED_PARAMETER = ValueMarks(
    begin=r'<parameter name="[^"\n]+">',
    end="</parameter>",
    after=r"\s*(?:<parameter |</invoke>)",
    call=r"\s*<invoke ",
    name=r'<parameter name="([^"\n]+)">',
    function=r"<invoke ",
)
_ARG_VALUE = ValueMarks(
    begin=r"<arg_value>",
    end="</arg_value>",
    after=r"\s*(?:<arg_key>|</tool_call>)",
    call=r"[\w.-]+\s*<arg_key>",
    name=r"<arg_key>([^<]*)</arg_key>",
    function=r"<tool_call>",
)

FORMATS = (
    CallFormat(("qwen3_coder", "qwen3_xml"), ("<tool_call>", "<function=", "<parameter="), *_TAG, value=_PARAMETER),
    CallFormat(("glm45", "glm47"), ("<tool_call>", "<arg_key>", "<arg_value>"), *_TAG, value=_ARG_VALUE),
    CallFormat(("granite4",), ("<tool_call>", "<|start_of_role|>"), *_TAG, json=True),
    CallFormat(("minimax_m2",), ("<minimax:tool_call>",), "<minimax:tool_call>", "</minimax:tool_call>", value=_NAMED_PARAMETER),
    CallFormat(("seed_oss",), ("<seed:tool_call>",), "<seed:tool_call>", "</seed:tool_call>", value=_PARAMETER),
    CallFormat(("hermes", "qwen3_json"), ("<tool_call>",), *_TAG, json=True),
    CallFormat(("deepseek_v3",), (_DEEPSEEK[0], "```json"), *_DEEPSEEK, by_tokens=True, each=_DEEPSEEK_EACH),
    CallFormat(("deepseek_v31",), (_DEEPSEEK[0],), *_DEEPSEEK, without=("```json",), by_tokens=True, each=_DEEPSEEK_EACH),
    CallFormat(
        ("kimi_k2",),
        ("<|tool_calls_section_begin|>",),
        "<|tool_calls_section_begin|>",
        "<|tool_calls_section_end|>",
        each="<|tool_call_begin|>",
    ),
    CallFormat(("mistral",), ("[TOOL_CALLS]",), "[TOOL_CALLS]", "", by_tokens=True),
    CallFormat(("internlm",), ("<|action_start|>", "<|plugin|>"), "<|action_start|>", "<|action_end|>"),
    CallFormat(("llama4_pythonic",), ("<|header_start|>", "<|python_start|>"), "<|python_start|>", "<|python_end|>"),
    CallFormat(("llama3_json", "llama4_json"), ("<|start_header_id|>", '"parameters":'), "<|python_tag|>", "", by_tokens=True),
    CallFormat(("llama3_json", "llama4_json"), ("<|start_header_id|>", "<|python_tag|>"), "<|python_tag|>", "", by_tokens=True),
)
"""Formats that are recognised. A parser of any other format is named in the recipe."""


JSON_PARSERS = frozenset({"llama3_json", "llama4_json", "xlam", "granite", "jamba", "phi4_mini_json"})
"""Parsers that take JSON without any mark for a call."""
PYTHON_PARSERS = frozenset({"pythonic", "llama4_pythonic", "olmo3", "lfm2"})
"""Parsers that take a list of Python calls for calls."""


def format_of(template: str) -> tuple[CallFormat, str] | None:
    """Return the format that a chat template shows, and in words where; None if it shows none."""
    for each in FORMATS:
        if all(mark in template for mark in each.marks) and not any(mark in template for mark in each.without):
            return each, f"its chat template has {' and '.join(each.marks)}"
    return None


def format_named(parser: str) -> CallFormat | None:
    """Return the format that a vLLM parser reads, if it is in the table."""
    return next((each for each in FORMATS if parser in each.parsers), None)
