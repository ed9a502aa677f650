"""The form of a mathematical answer: a number, words, a choice, a quantity with its unit, or several of these in a bracket.

What always holds: two forms are equal if their parts are. So no part of an answer is taken for the whole.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum, auto

from asyncrl.envs.rewards.math_choices import CHOICE

Same = Callable[[str, str], bool]
"""Whether two expressions are mathematically equal."""


class Kind(Enum):
    """What an answer is."""

    EXPRESSION = auto()
    WORDS = auto()
    """Words, a choice (``(B)``), a time of day, a date, a number in another base: compared as texts."""
    CHOICE = auto()
    """A choice that is expected: its letter as ``text``, and what it says, if anything that can be read, as its part."""
    QUANTITY = auto()
    """One part, and its unit as ``text``."""
    EQUATION = auto()
    """Two parts."""
    UNORDERED = auto()
    """Parts in any order: a set, a list of solutions, a union."""
    ORDERED = auto()
    """Parts in their order, with the brackets or the kind of matrix as ``text``."""


@dataclass(frozen=True)
class Form:
    """An answer as it was read."""

    kind: Kind
    text: str = ""
    parts: tuple["Form", ...] = ()

    def expressions(self) -> Iterator[str]:
        """The expressions that it consists of."""
        if self.kind is Kind.EXPRESSION:
            yield self.text
        for part in self.parts:
            yield from part.expressions()


_MOST_PARTS = 200
"""Parts of a bracket, rows of a matrix and cells of a row that are read."""
_DEEPEST = 12
_SEVERAL = re.compile(r"\b(?:and|or)\b|,")
_CLOCK = re.compile(r'(\d+(?:\s*:\s*\d+)+)\s*"?\s*(?:([ap])\.?\s*m\.?)?\s*"?', re.IGNORECASE)
_DASHED = re.compile(r"\d+(?:\s*-\s*\d+){1,3}|\d+(?:/\d+){2}")
"""A date, a score, a range or a telephone number, which nobody means to be computed."""
_BASED = re.compile(r"([0-9A-Fa-f]+)_(?:\{([^{}]+)\}|(\w))")
_LETTER = r"[^\W\d_\u00b2\u00b3\u00b9\u00bc-\u00be\u0370-\u03ff\u2070-\u218b]"
"""A letter of any script but that of Greek variables; Python takes powers, indices and fractions for letters, too."""
_WORDS = re.compile(rf"(?=.*(?:{_LETTER}{{2}}|[\u3400-\u9fff])){_LETTER}(?:{_LETTER}|['., -])*")
_DIFFERENCE = re.compile(r"-?[a-z]{1,2}(?:\s*-\s*[a-z]{1,2})+")
"""Products of letters, such as those of ``ad-bc``, and no words with hyphens."""
_HYPHEN = re.compile(r"([A-Z][a-z]+|[^\W\d_]{4,})\s*[-/]|[-/]\s*(?=[A-Z][a-z]|[^\W\d_]{4})|^\s*-\s+")
"""What belongs to a name or a word, or begins a line of a list, and is no sign."""
_MATRIX = re.compile(r"\\begin\s*\{([pbvBV]?matrix|array)\}(?:\s*\{[lcr|]*\})?(.*)\\end\s*\{\1\}", re.DOTALL)
_SIDES = re.compile(r"\\[pm][mp](?![A-Za-z])")
_MODULO = re.compile(r"(.+?)(\\pmod\{.+\})")
_MIXED = re.compile(r"(-?)\s*(\d+)\s*(\\frac\s*\{\d+\}\s*\{\d+\}|\\frac\s*\d\s*\d)|(-?)\s*(\d+)\s+(\d+/\d+)")
_BETWEEN = re.compile(r"(.+?)(<|>|\\(?:le|ge)(?![A-Za-z]))\s*\"?[A-Za-z]\"?\s*(<|>|\\(?:le|ge)(?![A-Za-z]))(.+)")
_BEFORE = re.compile(r"([^<>=]+?)(<|>|\\(?:le|ge)(?![A-Za-z]))\s*([A-Za-z])")
_BEYOND = re.compile(r"[A-Za-z]\s*(<|>|\\(?:le|ge)(?![A-Za-z]))(.+)")
_MEMBER = re.compile(r"[A-Za-z]\s*\\in(?![A-Za-z])")
_QUANTITY = re.compile(
    r'(.*?[\d)}\]!a-z])\s*(?:(%)|"([^"]+)"((?:\s*\^\s*\{?\s*\d\s*\}?)?)|\s([A-Za-z][A-Za-z./ ]*(?:\s*\^\s*\{?\d\}?)?))'
)
_PARTS = re.compile(r'(\d+(?:\.\d+)?)\s*"?\s*([A-Za-z][A-Za-z.]*)\s*"?\s*')
_GREEK = (
    r"\\(?:var)?(?:alpha|beta|gamma|delta|epsilon|zeta|eta|theta|kappa|lambda|mu|nu|xi|rho|sigma|tau|phi|chi|psi|omega)"
    r"(?![A-Za-z])"
)
_NAME = re.compile(
    rf"(?:[^\W\d_]|(?i:{_GREEK}))(?:'|_\{{?\w+\}}?)?(?:(?:\^\{{-1\}})?\([A-Za-z](?:\s*,\s*[A-Za-z])*\))?"
    r"|\([A-Za-z](?:_\{?\w\}?)?(?:\s*,\s*[A-Za-z](?:_\{?\w\}?)?)+\)"
    r"|[A-Z]{2,3}|\\(?:angle|overline)\s*\{?\s*[A-Z]{1,3}\s*\}?|\\frac\s*\{d[a-z]\}\s*\{d[a-z]\}"
)
"""What an equation gives the value of: a variable, a function, a point, a segment, an angle or a derivative, and no sum."""
_OPEN, _CLOSE = "([{", ")]}"
_TURNED = {"<": ">", ">": "<", "\\le": "\\ge", "\\ge": "\\le"}
_REGION = {"<": "()", "\\le": "[]"}
_PLURALS = {"feet": "foot", "inches": "inch", "centuries": "century"}
_UNITS = {
    "meter": "m", "metre": "m", "centimeter": "cm", "centimetre": "cm", "millimeter": "mm", "kilometer": "km", "kilometre": "km",
    "inch": "in", "foot": "ft", "yard": "yd", "mile": "mi", "gram": "g", "kilogram": "kg", "pound": "lb", "ounce": "oz",
    "second": "s", "sec": "s", "minute": "min", "hour": "h", "hr": "h", "liter": "l", "litre": "l", "milliliter": "ml",
    "degree": "", "deg": "", "dollar": "", "buck": "", "usd": "", "unit": "", "percent": "%",
}  # fmt: skip
_BASES = {"two": "2", "three": "3", "four": "4", "five": "5", "six": "6", "seven": "7", "eight": "8", "nine": "9", "ten": "10"}
_SHORT_UNITS = {*_UNITS.values(), "mph", "kph", "hz"} - {"", "%"}
_UNIT = re.compile(r"\s*(?:\\?%|°|[A-Za-z][A-Za-z/]*(?: [A-Za-z/]+){0,3}(?:\s*\^\s*\{?\d\}?)?)\s*")
_JOINED_UNIT = re.compile(rf"(?<=\d)(?=(?:{'|'.join(sorted(each for each in _SHORT_UNITS if len(each) > 1))})(?![A-Za-z]))")
"""Before a unit of several letters behind a number, as in ``5cm``; one letter may be a variable."""


def form_of(text: str, depth: int = 0) -> Form:
    """Read a text that :func:`~asyncrl.envs.rewards.math_text.tidied` has brought into one spelling."""
    text = text.strip()
    if re.fullmatch(r'"[^"]*"', text):
        text = text[1:-1].strip()
    if depth > _DEEPEST:
        return Form(Kind.EXPRESSION, text)
    for read in (_texts, _regions, _bracketed, _listed, _sided, _measured, _equation):
        found = read(text, depth + 1)
        if found is not None:
            return found
    return Form(Kind.EXPRESSION, _MIXED.sub(_sum, text) if _MIXED.fullmatch(text) else text)


def _texts(text: str, _: int) -> Form | None:
    if found := CHOICE.fullmatch(text):
        return Form(Kind.WORDS, found[1])
    if found := _CLOCK.fullmatch(text):
        return Form(Kind.WORDS, re.sub(r"\s", "", found[1]).removeprefix("0") + (found[2] or "").lower())
    if _DASHED.fullmatch(text):
        return Form(Kind.WORDS, re.sub(r"\s|(?<!\d)0+(?=\d)", "", text))
    if found := _BASED.fullmatch(text):
        base = (found[2] or found[3]).strip('" ').lower()
        return Form(Kind.WORDS, f"{found[1].lower()}_{_BASES.get(base, base)}")
    plain = text.replace('"', " ").strip()
    if _SEVERAL.search(plain) or _DIFFERENCE.fullmatch(plain):
        return None
    if _WORDS.fullmatch(plain):
        return Form(Kind.WORDS, words(plain))
    return None


def words(text: str) -> str:
    """Words without their capitals and punctuation, but with the signs of numbers and formulas among them."""
    plain = _HYPHEN.sub(r"\1 ", text).lower()
    return " ".join(re.findall(r"[^\W_]+|[-+/]|\^(?=[\w{(-])", plain))


def _regions(text: str, depth: int) -> Form | None:
    if "\\cup" in text:
        return Form(Kind.UNORDERED, "union", tuple(form_of(part, depth) for part in text.split("\\cup")))
    if found := _MEMBER.match(text):
        return form_of(text[found.end() :], depth)
    if _SEVERAL.search(text):
        return None
    if found := _BETWEEN.fullmatch(text):
        low, first, second, high = found.groups()
        if first[0] == ">" or first == "\\ge":
            low, first, second, high = high, second, first, low
        left, right = _REGION[_up(first)][0], _REGION[_up(second)][1]
        return Form(Kind.ORDERED, left + right, (form_of(low, depth), form_of(high, depth)))
    if found := _BEFORE.fullmatch(text):
        text = f"{found[3]} {_TURNED[found[2]]} {found[1]}"
    if found := _BEYOND.fullmatch(text):
        end, infinite = form_of(found[2], depth), Form(Kind.EXPRESSION, "\\infty")
        if found[1] in (">", "\\ge"):
            return Form(Kind.ORDERED, _REGION[_up(found[1])][0] + ")", (end, infinite))
        return Form(Kind.ORDERED, "(" + _REGION[found[1]][1], (Form(Kind.EXPRESSION, "-\\infty"), end))
    return None


def _up(relation: str) -> str:
    return {">": "<", "\\ge": "\\le"}.get(relation, relation)


def _bracketed(text: str, depth: int) -> Form | None:
    if text == "\\emptyset":
        return Form(Kind.UNORDERED, "set")
    if found := _MATRIX.fullmatch(text):
        rows = [row for row in re.split(r"\\\\", found[2]) if row.strip()][:_MOST_PARTS]
        made = (Form(Kind.ORDERED, "row", tuple(form_of(cell, depth) for cell in row.split("&")[:_MOST_PARTS])) for row in rows)
        return Form(Kind.ORDERED, "determinant" if found[1] in ("vmatrix", "Vmatrix") else "matrix", tuple(made))
    plain = text.replace("\\{", "{").replace("\\}", "}")
    if len(plain) < 2 or plain[0] not in _OPEN or plain[-1] not in _CLOSE or not _encloses(plain):
        return None
    inside = _split(plain[1:-1])
    if plain[0] == "{" and (text.startswith("\\{") or len(inside) > 1):
        return Form(Kind.UNORDERED, "set", tuple(form_of(part, depth) for part in inside))
    if len(inside) > 1:
        return Form(Kind.ORDERED, plain[0] + plain[-1], tuple(form_of(part, depth) for part in inside))
    return None


def _encloses(text: str) -> bool:
    """Whether the first bracket is closed by the last; brackets of intervals may differ."""
    depth = 0
    for place, sign in enumerate(text):
        depth += (sign in _OPEN) - (sign in _CLOSE)
        if depth == 0:
            return place == len(text) - 1
    return False


def _split(text: str) -> list[str]:
    """The parts between commas that stand in no bracket."""
    parts, depth, start = [], 0, 0
    for place, sign in enumerate(text):
        depth += (sign in _OPEN) - (sign in _CLOSE)
        if sign in ",;" and depth <= 0:
            parts.append(text[start:place])
            start = place + 1
    return [*parts, text[start:]][:_MOST_PARTS]


def _listed(text: str, depth: int) -> Form | None:
    joined = re.sub(r',?\s*"?\s*(?<![A-Za-z])(?:and|or)(?![A-Za-z])\s*"?\s*', ",", text)
    parts = [part for part in _split(joined) if part.strip()]
    if len(parts) < 2:
        return None
    made = tuple(form_of(part.strip().strip('"'), depth) for part in parts)
    units = {part.text for part in made if part.kind is Kind.QUANTITY and part.text}
    return Form(Kind.ORDERED, "quantities", made) if len(units) == len(made) else Form(Kind.UNORDERED, "list", made)


def _sided(text: str, depth: int) -> Form | None:
    signs = _SIDES.findall(text)
    if len(signs) != 1 or "=" in text:
        return None
    sides = (_SIDES.sub(sign, text) for sign in "+-")
    return Form(Kind.UNORDERED, "list", tuple(form_of(side.strip().lstrip("+"), depth) for side in sides))


def _measured(text: str, depth: int) -> Form | None:
    if found := _MODULO.fullmatch(text):
        return Form(Kind.QUANTITY, _spaceless(found[2]), (form_of(found[1].replace("\\equiv", "="), depth),))
    text = _JOINED_UNIT.sub(" ", text)
    several = list(_PARTS.finditer(text))
    if len(several) > 1 and "".join(found[0] for found in several) == text:
        parts = (Form(Kind.QUANTITY, unit_of(found[2]), (Form(Kind.EXPRESSION, found[1]),)) for found in several)
        return Form(Kind.ORDERED, "quantities", tuple(parts))
    if not (found := _QUANTITY.fullmatch(text)):
        return None
    value, percent, quoted, power, plain = found.groups()
    name = unit_of(plain.partition("^")[0]) if plain else ""
    if plain and re.match(r"for (?:all|any|each|every|some)\b", plain):
        return form_of(value, depth)
    if plain and not (_SHORT_UNITS.issuperset(name.split("/")) or re.search(r"[A-Za-z]{3}", plain) or not name):
        return None
    unit = unit_of((percent or quoted or plain) + (power or ""))
    return Form(Kind.QUANTITY, unit, (form_of(value, depth),))


def unit_of(text: str) -> str:
    """A unit in one spelling; empty for what may as well be left out: degrees, dollars and units without a name."""
    text = re.sub(r"[{}\s.]+", " ", text.lower()).strip()
    text = re.sub(r"^(square|cubic|sq) (\w+)", lambda found: f"{found[2]}^{3 if found[1] == 'cubic' else 2}", text)
    text = re.sub(r"\s*\^\s*", "^", text)

    def single(found: re.Match[str]) -> str:
        name = _PLURALS.get(found[0], found[0])
        name = name[:-1] if len(name) > 2 and name.endswith("s") else name
        return _UNITS.get(name, name)

    unit = re.sub(r"[a-z]+", single, text)
    return unit if unit.strip("^2 ") else ""


def is_unit(text: str) -> bool:
    """Whether a text is a unit with a name of its own, such as ``km`` or ``miles per hour``, and not any words."""
    return _UNIT.fullmatch(text) is not None and all(
        each in _SHORT_UNITS or each == "per" for each in re.findall(r"[a-z]+", unit_of(text))
    )


def _equation(text: str, depth: int) -> Form | None:
    left, equals, right = text.rpartition("=")
    if not equals or re.search(r"[<>!]$|\\(?:le|ge|ne)$", left):
        return None
    return Form(Kind.EQUATION, text, (form_of(left.rpartition("=")[2], depth), form_of(right, depth)))


def _sum(found: re.Match[str]) -> str:
    """A mixed number as a sum."""
    sign, whole, part = (found[1], found[2], found[3]) if found[2] else (found[4], found[5], found[6])
    return f"{sign}({whole}+{part})"


def equal(wanted: Form, given: Form, same: Same) -> bool:
    """Whether an answer is the one that is wanted."""
    if wanted == given:
        return True
    if given.kind is Kind.EQUATION and wanted.kind is not Kind.EQUATION:
        return equal(wanted, given.parts[1], same)
    if wanted.kind is Kind.EQUATION and given.kind is not Kind.EQUATION:
        name = wanted.text.rpartition("=")[0].rpartition("=")[2].strip()
        return _NAME.fullmatch(name) is not None and equal(wanted.parts[1], given, same)
    if wanted.kind is Kind.EQUATION:
        left, right = (equal(*sides, same) for sides in zip(wanted.parts, given.parts, strict=True))
        return right if left else same(wanted.text, given.text)
    if Kind.QUANTITY in (wanted.kind, given.kind):
        return _equal_quantities(wanted, given, same)
    if wanted.kind is Kind.UNORDERED and given.kind is Kind.UNORDERED:
        return _equal_in_any_order(wanted.parts, given.parts, same)
    if Kind.UNORDERED in (wanted.kind, given.kind):
        several, one = (wanted, given) if wanted.kind is Kind.UNORDERED else (given, wanted)
        return len(several.parts) == 1 and equal(several.parts[0], one, same)
    if wanted.kind is Kind.WORDS and (letter := CHOICE.fullmatch(given.text.upper())):
        return wanted.text == letter[1]
    if wanted.kind is not given.kind:
        return False
    if wanted.kind is Kind.ORDERED:
        if wanted.text != given.text or len(wanted.parts) != len(given.parts):
            return False
        return all(equal(*pair, same) for pair in zip(wanted.parts, given.parts, strict=True))
    if wanted.kind is Kind.WORDS:
        return wanted.text == given.text
    return _spaceless(wanted.text) == _spaceless(given.text) or same(wanted.text, given.text)


def _spaceless(text: str) -> str:
    """A text without spaces, but for those between digits: ``4 2`` is not 42."""
    return re.sub(r"(?<!\d) +| +(?!\d)", "", text)


def _equal_quantities(wanted: Form, given: Form, same: Same) -> bool:
    """A unit that is wanted must be there, but for those that go without saying; one that is not wanted does no harm."""
    unit, value = (wanted.text, wanted.parts[0]) if wanted.kind is Kind.QUANTITY else ("", wanted)
    has, number = (given.text, given.parts[0]) if given.kind is Kind.QUANTITY else ("", given)
    if "%" in (unit, has) and unit in ("", "%") and has in ("", "%"):
        scaled = value.parts[1] if value.kind is Kind.EQUATION else value
        as_given = Form(Kind.EXPRESSION, f"\\frac{{{scaled.text}}}{{{0.01 if has else 100}}}")
        return equal(value, number, same) or (unit != has and equal(as_given, number, same))
    return unit in ("", has) and equal(value, number, same)


def _equal_in_any_order(wanted: Sequence[Form], given: Sequence[Form], same: Same) -> bool:
    left = list(given)
    for each in wanted:
        found = next((place for place, other in enumerate(left) if equal(each, other, same)), None)
        if found is None:
            return False
        del left[found]
    return not left
