"""Reads the score that a judge's reply states.

What always holds: a number that may be another one, such as a share, a range, or points out of other points than the judge was
told of, is no score. Then the judge is asked again, which costs less than a reward that is wrong.
"""

import re

from asyncrl.envs.stated_answer import behind_thoughts

_NUMBER = r"(?>[-−–]?(?:\d+(?:\.\d+)?|\.\d+)(?:e[-+]?\d+)?)"  # noqa: RUF001
_REMARK = r"(?:\s*(?:[(\[][^()\[\]\n]{1,30}[)\]]|/\s*\d+|out\s+of\s+\d+)(?=[\s*_`\"']*[:=]))?"
"""What is said of the scores before the score, such as ``(0-10)`` in ``Score (0-10): 8``."""
_BETWEEN = r"(?:[^\w.−–—-]|[.−–—-](?![\d.])){0,8}?\s*"  # noqa: RUF001
_OTHERS = ("max", "maximum", "highest", "possible", "min", "minimum", "lowest", "passing", "previous")
_NAMED = "".join(rf"(?<!{word}[\s_-])" for word in _OTHERS)
_JOINED = r"(?:[^\W_]+_)*"
_POINTS = rf"{_NAMED}score{_REMARK}{_BETWEEN}(?:\\boxed\s*\{{\s*)?({_NUMBER})(?=(.{{0,40}}))"
_SCORE = re.compile(rf"(?<!\w)({_JOINED}){_POINTS}", re.IGNORECASE)
"""What a score is called, such as ``final_`` in ``final_score``, the score, and what stands behind it."""
_STATED = re.compile(
    rf"^[^\w\n]*((?:\w+[^\S\n]+){{0,2}}{_JOINED}){_POINTS}(?:[^\w\n]|\d|\b(?:out|of|to|or|percent|points?)\b)*$",
    re.IGNORECASE | re.MULTILINE,
)
"""A score that fills a line: one in a sentence may be quoted from an answer that asks for it."""
_ALONE = re.compile(rf"\s*\**({_NUMBER})(\s*/\s*\d+(?:\.\d+)?)?\**\s*\.?\s*", re.IGNORECASE)
_WHOLE = {"overall", "final", "total", "i", "it"}
_ARTICLES = {"the", "my", "a"}
_CLOSED = r"[\s*`\"')\]}$]*"
_OPERATION = rf"(?:{_CLOSED}(?:\(?\s*[+±x×·÷]\s*|/\s*(?=\())|(?P<space>\s*)\*(?P=space))\(?\.?\d"  # noqa: RUF001
"""What else is computed with the number before it; a star with space on one side is emphasis."""
_COMPUTED = re.compile(_OPERATION, re.IGNORECASE)
_OTHER_NUMBER = re.compile(
    rf"\w|[.,]\d|{_OPERATION}|{_CLOSED}(?:%|percent|(?:to|or|[-−–—~=])\s*\.?\d)",  # noqa: RUF001
    re.IGNORECASE,
)
_OUT_OF = re.compile(
    r"[\s*`\"'()\[\]{}$]*(?:points?[\s(\[]*)?(?:/|(?:out )?of)\s*(?:a (?:possible|maximum|total) (?:of )?)?\**(\d+(?:\.\d+)?)",
    re.IGNORECASE,
)


def read_score(reply: str, highest: float) -> float | None:
    """The score that a reply states; None if there is none.

    It is the last one that fills a line, else the one after the last word ``score``, else a number alone in the last line, which
    may not differ from that. One of a part, such as ``Accuracy score``, counts where there is no other, and parts do not differ.
    What the model thought (until ``</think>``) states none.

    Args:
        reply: what the judge wrote.
        highest: the highest score; one that says it is out of another number is none.
    """
    said = behind_thoughts(reply)
    if said == reply and (reply.lstrip().startswith("<think>") or reply.rstrip().rpartition("\n")[2].strip() == "</think>"):
        return None
    reply = said
    stated = _STATED.findall(reply)
    found: list[tuple[str, str, str]] = stated or _SCORE.findall(reply)
    lines = [line for line in reply.splitlines() if line.strip()]
    alone = _ALONE.fullmatch(lines[-1]) if lines and not stated else None
    if alone:
        found = [*found[-1:], ("", alone[1], alone[2] or "")]
    else:
        found = [each for each in found if not _is_of_a_part(each[0])][-1:] or found
    if len({_value(number) for _, number, _ in found}) != 1:
        return None
    _, number, behind = found[-1]
    if _OTHER_NUMBER.match(behind):
        return None
    out_of = _OUT_OF.match(behind)
    if out_of and (float(out_of[1]) != highest or _COMPUTED.match(behind, out_of.end())):
        return None
    return _value(number)


def _is_of_a_part(called: str) -> bool:
    """Whether a score that is called so is one of several, such as ``Accuracy score``."""
    words = {*re.findall(r"[^\W_]+", called.lower())} - _ARTICLES
    return bool(words) and not words & _WHOLE


def _value(number: str) -> float:
    return float(re.sub("[−–]", "-", number))  # noqa: RUF001
