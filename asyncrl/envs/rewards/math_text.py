"""The text of a mathematical answer: which part of it counts, and its LaTeX in one plain spelling.

What always holds: one part of an answer counts, wherever it stands, so a list of guesses is worth its last one.
"""

import re
import unicodedata
from collections.abc import Iterator
from fractions import Fraction
from typing import NamedTuple

from asyncrl.envs.rewards.math_forms import is_unit
from asyncrl.envs.rewards.math_numbers import is_arithmetic
from asyncrl.envs.stated_answer import in_tags

_MARKERS = re.compile(
    r"####|(?:final\s+answer|answer|result)[\"']?(?:\s+is|\s*=|\s*[:\uff1a])+|(?:答案|结果)(?:是|为|為|\s*=|\s*[:\uff1a])+",
    re.IGNORECASE,
)
_SEGMENTS = re.compile(
    r"\$\$(.+?)\$\$|(?<![\\$])\$([^$\n]+?)(?<!\\)\$(?!\d)|\\\(((?:(?!\\\().)+?)\\\)|\\\[((?:(?!\\\[).)+?)\\\]", re.DOTALL
)
_FENCE = re.compile(r"\n\s*```\s*$")
_SAID = re.compile(r".*(?:\b(?:is|are|be|equals?|gives?|get)\b|[:=])\s*")
_CONCLUDED = re.compile(r"(?:\b(?:is|are|be|equals?|gives?|get|so|then|thus|hence|therefore)\b|[:=])[\s,]*$", re.IGNORECASE)
_SIGN = re.compile(r"(?<![\w)}$.])(?:[-+−±]|\d+(?:\.\d+)?)$")  # noqa: RUF001
"""What belongs to the formula behind it, such as the sign of ``-$5$``."""
_JOIN = re.compile(r"[^\S\n]*[,;]?[^\S\n]*(?:\b(?:and|or)\b)?[^\S\n]*")
_BEHIND = re.compile(r"[^\n.,;:!?()$]*?(?=[\n.,;:!?()$]|\s+(?:and|or)\b|\s*$)")
_FURTHER = re.compile(r"[^\S\n]*(,|;|=|[<>]|\\(?:le|ge)q?\b|\b(?:and|or)\b)[^\S\n]*[-+−\d\\(\[{][^\n]*")  # noqa: RUF001
_CONDITION = re.compile(r"(?:and|or|if|when|where|for|unless|except)\b|[-+=<>*/^]", re.IGNORECASE)
_DIGITS = re.compile(r"(?<![\d.,/^])(?<!\^\{)[\d.,/]*\d")
_RESULT = re.compile(
    r"(?<![^\s(*$=≈])(?<!\b(?:or|no) )(?<!\b(?:and|not) )(?<!, )"
    r"([-+−]?(?>(?:\d[\d,]*(?:\.\d+)?|\.\d+)(?:/\d+)?(?:\\?%)?)(?![!^_\\/]))([^\n.,;:!?()$*]*)"  # noqa: RUF001
)
"""A number that is no part of an expression or of a list of guesses, and what may be its unit."""
_NOTE = re.compile(r"(?<!\s)\s*(?:[(:]|[(,]?\s*\b(?:since|because|as|from|i\.e\.|that is),?)$", re.IGNORECASE)
"""What joins a result to the formula from which it follows."""
_WORD = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{2,}")
_NO_PROSE = {"or", "and", "pi", "sqrt", "infinity", "inf", "oo", "sin", "cos", "tan", "log", "ln", "exp", "in", "am", "pm"}
MOST_BOXES = 20
"""Boxes, from the end of an answer, among which one that is closed is looked for."""

_NO_WORDS = re.compile(r'"[^"]*"|\\(?:begin|end)\s*\{[^{}]*\}')
_FACTORS = re.compile(
    r"(?<![\\A-Za-z])(?<![A-Za-z] )(?![A-Z][a-z])[A-Za-z]{2,3}"
    r"(?=[-+*/^_=<>(){}|!]|\s+(?:[+*/^_=<>)}\]]|-\s|\\(?:cdot|times|div|le|ge)(?![A-Za-z]))|(?<=[(\[{]..),|(?<=[(\[{]...),)"
)
"""Letters that are multiplied, such as those of ``xy+1``: no name, and no word behind others, before what makes them a part."""
MOST_WORDS = 4
"""Words of an answer that is none of prose, such as those of a unit."""

_SYMBOLS = {
    "−": "-", "–": "-", "×": "\\times ", "·": "\\cdot ", "÷": "/", "π": "\\pi ", "∞": "\\infty ", "≤": "\\le ", "≥": "\\ge ",  # noqa: RUF001
    "≠": "\\ne ", "±": "\\pm ", "°": "\\circ ", "∪": "\\cup ", "∩": "\\cap ", "∅": "\\emptyset ", "∈": "\\in ",  # noqa: RUF001
    "€": "\\$", "£": "\\$", "“": '"', "”": '"', "’": "'", "\u00a0": " ",  # noqa: RUF001
}  # fmt: skip
_WIDE = {0xFEE0 + sign: sign for sign in range(0x21, 0x7F)}
"""The signs of ASCII as wide as those of Chinese."""
_RAISED = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁽⁾ⁿˣ", "0123456789+-()nx")
_POWER = re.compile("[⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁽⁾ⁿˣ]+")
_PARTED = re.compile("[¼-¾⅐-⅞]")
"""A sign that is a fraction."""
_EMPHASIS = (
    re.compile(r"^(?:[-+*>]\s+)*(?=\*\*)"),
    re.compile(r"(?<![\w)}\]])\*\*(?=[^\s*])((?:(?!\*\*).)+)(?<=\S)\*\*(?![\w({\\])"),
    re.compile(r"^(?:\*{1,3}|__)|(?<![\^*])(?:\*{1,3}|__)[\s.]*$"),
)
"""The marks of a line before bold, bold about words or a formula, and the half of emphasis that an answer begins or ends with."""
_POWERS = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12}
_REWRITES = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (
            r"(?<!\\)\\(?:[ ,;:!>~]|quad|qquad|displaystyle|textstyle|limits|bigg?[lrm]?|Bigg?[lrm]?|boldsymbol|bm)(?![A-Za-z])",
            " ",
        ),
        (r"(?<!\\)~", " "),
        (
            r"√\s*(?:\{([^{}]*)\}|\(([^()]*)\)|(\d+(?:\.\d+)?|[A-Za-z]))",
            lambda found: f"\\sqrt{{{found[1] or found[2] or found[3]}}}",
        ),
        (r"(?<=\d),\s+!", ","),
        (r"(?<![\d.,])(\d{1,3}(?: \d{3})+)(?![\d.,]| \d)", lambda found: found[0].replace(" ", "")),
        (r"\\(?:left|right)(?![A-Za-z])\.?", ""),
        (r"\\[dtc]frac(?![A-Za-z])", r"\\frac"),
        (r"\\(?:text|textbf|textit|textrm|mbox|mathrm|mathbf|mathit|rm|operatorname)\s*\{([^{}]*)\}", r' "\1" '),
        (r"\\(?:ge|le|ne)q(?![A-Za-z])", lambda found: found[0][:-1]),
        (r"<=|=<", r"\\le "),
        (r">=|=>", r"\\ge "),
        (r"\\leqslant|\\geqslant", lambda found: found[0][:3]),
        (r"\\(?:varnothing|emptyset)|\\\{\s*\\\}", r"\\emptyset "),
        (r"(?<![A-Za-z\\])(ln|log|sin|cos|tan|exp)(?=\s*[\d({\\]|\s+[a-z](?![A-Za-z]))", r"\\\1 "),
        (r"\\(sin|cos|tan|cot|sec|csc)\s*\(?\s*(\d+)\s*\^?\s*\{?\s*\\circ\s*\}?\s*\)?", r"\\\1(\2 \\cdot \\frac{\\pi}{180})"),
        (r"\^?\s*\{?\s*\\(?:circ|degree)(?![A-Za-z])\s*\}?", " degrees "),
        (r"(?<![A-Za-z\\])(?:infinity|inf|oo)(?![A-Za-z])", r"\\infty "),
        (r"(?<![A-Za-z\\])sqrt\s*\(([^()]*)\)", r"\\sqrt{\1}"),
        (r"(?<![A-Za-z\\])pi(?![A-Za-z])", r"\\pi "),
        (r"\\log_(?:e|\{e\})(?![A-Za-z])", r"\\ln "),
        (
            r"\\[pb]mod\s*(?:\{([^{}]*)\}|(\w+))|\(\s*\\?mod\s*([^()]+)\)",
            lambda found: f"\\pmod{{{found[1] or found[2] or found[3]}}}",
        ),
        (r"\\binom\s*(\d)\s*(\d)(?!\d)", r"\\binom{\1}{\2}"),
        (r"\*\*", "^"),
        (r"\^\s*\(([^()]*)\)", r"^{\1}"),
        (r"\^\s*(-\s*\d+)", r"^{\1}"),
        (r"(?<=[\w)}\s])\*(?=[\w(\\\s])", r" \\cdot "),
        (r"(?<![\w.])(\d+(?:\.\d+)?)[eE]([-+]?\d+)(?!\w)", r"\1 \\times 10^{\2}"),
        (r"\\%", "%"),
        (
            r"(?<=\d)(\s*\"?\s*)(hundred|thousand|million|billion|trillion)s?(?![A-Za-z])",
            lambda found: f" \\times 10^{{{_POWERS[found[2].lower()]}}} {found[1]}",
        ),
    )
)
_REPEATING = re.compile(r"(\d*)\.(\d*)\\overline\s*\{(\d+)\}")
_THOUSANDS = re.compile(r"(?<![\d,.])\d{1,3}(?:,\d{3})+(?![\d,])")


def final_part(answer: str) -> tuple[str, bool]:
    """The part of an answer that counts, and whether the answer marks it: by a tag, a box, ``####`` or words, or as formulas."""
    answer = in_tags(answer)
    if (said := _marked(answer)) is not None:
        return said, True
    formulas = _last_formulas(answer)
    return (_FENCE.sub("", answer).strip().rpartition("\n")[2], False) if formulas is None else (_result(answer, formulas), True)


def expected_part(expected: str) -> tuple[str, bool] | None:
    """The part of an expected answer that is wanted, and whether the text marks it; None if it is prose about its formulas.

    Dollars are no mark: of ``$2$ and $3$``, both are wanted, and of ``$5$ cm``, the unit is.
    """
    expected = in_tags(expected)
    if (said := _marked(expected)) is not None:
        return said, True
    plain = _SEGMENTS.sub(_inside, expected).strip()
    formulas = _last_formulas(expected)
    if formulas is None or not ("\n" in plain or is_prose(tidied(plain))):
        return plain, False
    return (formulas.text, True) if formulas.conclude else None


def _marked(text: str) -> str | None:
    """What a text marks by a box, ``####`` or words."""
    if (boxed := _last_box(text)) is not None:
        return boxed
    marks = list(_MARKERS.finditer(text))
    if not marks:
        return None
    said = text[marks[-1].end() :].strip().partition("\n")[0]
    formulas = _last_formulas(said)
    return said if formulas is None else _result(said, formulas)


class _Formulas(NamedTuple):
    """The last formula of a text, with those that are joined to it by ``and``, ``or`` or a comma, and its unit.

    Attributes:
        start: where the first of them begins in the text.
        end: where the last of them ends there.
        conclude: whether they are what the text says: no condition or long text follows, and in their line are no other formulas
            but those from which they follow.
    """

    text: str
    start: int
    end: int
    conclude: bool


def _last_formulas(text: str) -> _Formulas | None:
    found = list(_SEGMENTS.finditer(text))
    if not found:
        return None
    first = len(found) - 1
    while first and _joins(text[found[first - 1].end() : found[first].start()]):
        first -= 1
    start, end = found[first].start(), found[-1].end()
    line = text[:start].rpartition("\n")[2]
    sign = _SIGN.search(line)
    unit = _BEHIND.match(text, end)
    assert unit is not None
    further = _FURTHER.match(text, end)
    behind = ""
    if is_unit(unit[0]):
        behind = unit[0]
    elif further and (further[1] == "or" or not _words(further[0])):
        behind = further[0]
    alone = _SEGMENTS.search(line) is None or _CONCLUDED.search(line) is not None
    left = text[end + len(behind) :].strip()
    return _Formulas(
        (sign[0] if sign else "") + _SEGMENTS.sub(_inside, text[start:end] + behind),
        start,
        end,
        alone and len(_words(left)) <= MOST_WORDS and _CONDITION.match(left) is None,
    )


def _joins(gap: str) -> bool:
    """Whether what stands between two formulas makes them one answer, such as ``or`` in ``$x = 1$ or $x = 2$``."""
    if _JOIN.fullmatch(gap):
        return bool(gap.strip())
    unit = _BEHIND.match(gap)
    return unit is not None and is_unit(unit[0]) and _JOIN.fullmatch(gap, unit.end()) is not None


def _result(text: str, formulas: _Formulas) -> str:
    """Return what the last formulas of a text say: they themselves, or their result if they are arithmetic and the text has it.

    The result is the only number behind them, or what stands before them if they are a note on it, as in ``12 ($3 + 9$)``.
    """
    behind = text[formulas.end :]
    unit = _BEHIND.match(behind)
    assert unit is not None
    if not is_arithmetic(tidied(formulas.text.removesuffix(unit[0] if is_unit(unit[0]) else ""))):
        return formulas.text
    if _DIGITS.search(behind):
        return _only_number(behind) or formulas.text
    before = text[: formulas.start].rstrip()
    note = _NOTE.search(before)
    if note is None:
        return formulas.text
    noted = before[: note.start()]
    earlier = _last_formulas(noted)
    if earlier is not None and earlier.end == len(noted):
        return earlier.text
    numbers = [] if note[0].endswith(":") else list(_RESULT.finditer(noted.rpartition("\n")[2]))
    return (_measured(numbers[-1]) if numbers and numbers[-1].end() == len(numbers[-1].string) else None) or formulas.text


def _only_number(text: str) -> str | None:
    """Return the number of a text that has no other, with its unit; None if it is part of an expression."""
    found = _RESULT.search(text) if len(_DIGITS.findall(text)) == 1 else None
    return _measured(found) if found else None


def _measured(result: re.Match[str]) -> str | None:
    """Return a number with its unit, or without the words behind it; None if others than words are there."""
    number, unit = result.groups()
    if is_unit(unit):
        return number + unit
    words = unit.split()
    return number if not words or (unit[0].isspace() and _words(words[0])) or words[0] == "in" else None


def readings(part: str) -> Iterator[str]:
    """What a part of an answer may mean, of which the first that is no prose counts: it itself, or what it says at its end."""
    yield part
    if said := _SAID.match(part):
        yield part[said.end() :]


def is_prose(text: str) -> bool:
    """Whether a text has words that are no mathematics, of which only the end may be an answer: many, or some before a number."""
    plain = _FACTORS.sub(" ", _NO_WORDS.sub("", text))
    before, number, _ = re.split(r"(\d|$)", plain, maxsplit=1)
    return len(_words(plain)) > MOST_WORDS or bool(number and _words(before))


def _words(text: str) -> list[str]:
    return [word for word in _WORD.findall(text) if word.lower() not in _NO_PROSE]


def _inside(segment: re.Match[str]) -> str:
    return next(filter(None, segment.groups()), "")


def _last_box(text: str) -> str | None:
    r"""Return what stands in the last ``\boxed{...}`` whose braces are closed."""
    for found in reversed(list(re.finditer(r"\\f?boxed\s*\{|\\boxed\s+(?=[\w$\\])", text))[-MOST_BOXES:]):
        if not found[0].endswith("{"):
            return text[found.end() :].partition("$")[0].strip()
        depth = 1
        for end in range(found.end(), len(text)):
            escaped = text[end - 1] == "\\"
            depth += 0 if escaped else {"{": 1, "}": -1}.get(text[end], 0)
            if depth == 0:
                return text[found.end() : end]
    return None


def tidied(text: str) -> str:
    """A text in one spelling: no dollars about it, no spacing, no sizes, no emphasis; words of LaTeX in quotation marks."""
    text = text.strip().translate(_WIDE)
    for sign, command in _SYMBOLS.items():
        text = text.replace(sign, command)
    text = _POWER.sub(lambda found: f"^{{{found[0].translate(_RAISED)}}} ", text)
    text = _PARTED.sub(lambda found: "\\frac{{{}}}{{{}}}".format(*unicodedata.normalize("NFKC", found[0]).split("\u2044")), text)
    text = re.sub(r"(?<=\d)(?:,\\!|\\!,|\{,\})\s*(?=\d)", ",", text)
    text = re.sub(r"(?<!\\)\\[()\[\]]", "", text)
    text = re.sub(r"\\\$|(?<!\\)\$", "", text)
    for marks in _EMPHASIS:
        text = marks.sub(lambda found: found[1] if found.re.groups else "", text)
    for pattern, replacement in _REWRITES:
        text = pattern.sub(replacement, text)
    text = _REPEATING.sub(_fraction, text)
    text = _THOUSANDS.sub(lambda found: found[0].replace(",", ""), text)
    text = re.sub(r'"\s*"', " ", text)
    return re.sub(r"\s+", " ", text).strip().rstrip(".,;:。 ").strip()


def _fraction(found: re.Match[str]) -> str:
    whole, fixed, repeated = found.groups()
    value = Fraction(
        int((whole or "0") + fixed + repeated) - int((whole or "0") + fixed), (10 ** len(repeated) - 1) * 10 ** len(fixed)
    )
    return f"\\frac{{{value.numerator}}}{{{value.denominator}}}"
