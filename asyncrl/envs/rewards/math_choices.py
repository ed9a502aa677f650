"""The choice that an answer to a question of multiple choice is, or begins with.

What always holds: one choice of an answer counts, and what says several side by side has none.
"""

import re
from typing import NamedTuple

CHOICE = re.compile(r'["\s]*\(?["\s]*([A-J])["\s]*\)?["\s]*')
_LED = re.compile(
    r'["\s]*(?:I\s+(?:choose|pick|select)\s+)?(?:(?:the\s+)?(?:correct\s+|final\s+)?(?:option|choice|answer)\b(?:\s+is\b)?[:"\s]*)?',
    re.IGNORECASE,
)
_CALLED_RIGHT = re.compile(
    r"(?:(?:so|thus|hence|then|therefore)[,\s]+)?(?:the\s+)?(?:option|choice|answer)\s+\(?([A-J])\)?\s+is\s+(?:the\s+)?(?:correct|right|best)"
    r"(?:\s+(?:option|choice|answer|one))?(?:,?\s+(?:because|since|as)\b.*)?",
    re.IGNORECASE | re.DOTALL,
)
_EXPLAINED = re.compile(r'([A-J])"?(?:,?\s+(?:because|since|as)\b.*|(?:,|\s+[-—]|\s+(?=\())\s*(.+))', re.DOTALL)
"""A letter, and the reason for it, or what it says."""
_A_WORD = re.compile(r"(?<![\\A-Za-z])(?:[A-Za-z]{3}|is\b)")
"""It tells what a choice says from a factor or a term behind a variable."""
_NAMES = re.compile(r"(?<![A-Za-z])(?!(?:or|and|not)\b)[A-Za-z]{2,} [A-J],? (?:and|or) [A-J](?![A-Za-z])")
"""Names that a choice speaks of, as in ``(B) a mixture of A and C``."""
_CHOSEN = re.compile(r'["\s]*(?:\(([A-J])\)|([A-J])(?:(\))|[.:](?!\d)))(.*)', re.DOTALL | re.IGNORECASE)
_OTHER_CHOICE = re.compile(r"\([A-J]\)|(?:^|\b(?:or|and|OR|AND)\b|[,;:/&=])[\"\s]*\(?[A-J](?![A-Za-z])")
_OPERATOR = re.compile(r"[+*/^=<>]|-(?!\s*\d)|- |\\(?:cdot|times)(?![A-Za-z])")
"""Behind ``(C)``, it makes that a factor."""
_QUOTES = "`'\"[]{} "
"""What may stand about the letter of a choice, as in code and JSON."""


class Choice(NamedTuple):
    """A choice as a text begins with it.

    Attributes:
        letter: its letter, as a capital.
        said: what the text says of it, such as ``12`` in ``(B) 12``.
        sure: whether it is a choice whatever is expected: a small letter, alone or before a colon, may be a variable.
        loose: whether a comma, a dash or a bracket alone parts it from what it says, as in an expected list or formula, too.
    """

    letter: str
    said: str
    sure: bool
    loose: bool = False


def choice_in(text: str) -> Choice | None:
    """The choice that a text is, or begins with; None if there is none, or several, such as in ``(B) or (C)``."""
    if right := _CALLED_RIGHT.fullmatch(text):
        return Choice(right[1].upper(), "", sure=True)
    led = _LED.match(text)
    assert led is not None
    text = text[led.end() :]
    if alone := CHOICE.fullmatch(text.strip(_QUOTES).upper()):
        return Choice(alone[1], "", sure=alone[1] in text)
    if explained := _EXPLAINED.fullmatch(text):
        said = (explained[2] or "").strip('" ()')
        if _names_another(said) or CHOICE.fullmatch(said.upper()):
            return None
        return Choice(explained[1], said, sure=not said or _A_WORD.search(said) is not None, loose=bool(said))
    found = _CHOSEN.fullmatch(text)
    if not found:
        return None
    letter, said = found[1] or found[2], found[4].strip('" ')
    if _names_another(said if letter.isupper() else said.upper()):
        return None
    return Choice(letter.upper(), said, sure=not _OPERATOR.match(said) and (letter.isupper() or bool(found[1] or found[3])))


def _names_another(said: str) -> bool:
    """Whether another choice stands beside the one that a text begins with; an article and names in what it says are none."""
    said = re.sub(r"^A (?=[A-Za-z]{2})(?!(?:is|are|or|and)\b)", "", said)
    return _OTHER_CHOICE.search(_NAMES.sub("", said)) is not None
