"""Reads the score that a judge's reply states.

What always holds: a number that may be another one, such as a share, a range, or points out of other points than the judge was
told of, is no score. Then the judge is asked again, which costs less than a reward that is wrong.
"""

import re

from asyncrl.envs.thoughts import behind_thoughts

_NUMBER = r"(?>[-−–]?(?:\d+(?:\.\d+)?|\.\d+)(?:e[-+]?\d+)?)"  # noqa: RUF001
_REMARK = r"(?:\s*(?:[(\[][^()\[\]\n]{1,30}[)\]]|/\s*\d+|out\s+of\s+\d+)(?=[\s*_`\"']*[:=]))?"
"""What is said of the scores before the score, such as ``(0-10)`` in ``Score (0-10): 8``."""
_BETWEEN = r"(?:[^\w.−–—-]|[.−–—-](?![\d.])){0,8}?\s*"  # noqa: RUF001
_NAMED = "".join(f"(?<!{word} )" for word in ("max", "maximum", "highest", "possible", "min", "minimum", "lowest", "passing"))
_SCORE = re.compile(rf"(?<!\w){_NAMED}score{_REMARK}{_BETWEEN}({_NUMBER})(?=(.{{0,40}}))", re.IGNORECASE)
"""A score, and what stands behind it."""
_STATED = re.compile(
    rf"^[^\w\n]*(?:\w+[^\S\n]+){{0,2}}{_SCORE.pattern}(?:[^\w\n]|\d|\b(?:out|of|to|or|percent|points?)\b)*$",
    re.IGNORECASE | re.MULTILINE,
)
"""A score that fills a line: one in a sentence may be quoted from an answer that asks for it."""
_ALONE = re.compile(rf"\s*\**({_NUMBER})\**\s*\.?\s*", re.IGNORECASE)
_OTHER_NUMBER = re.compile(r"\w|[.,]\d|[\s*`\"')\]}$]*(?:%|percent|(?:to|or|[-−–—~])\s*\.?\d)", re.IGNORECASE)  # noqa: RUF001
_OUT_OF = re.compile(
    r"[\s*`\"'()\[\]{}$]*(?:points?[\s(\[]*)?(?:/|(?:out )?of)\s*(?:a (?:possible|maximum|total) (?:of )?)?\**(\d+(?:\.\d+)?)",
    re.IGNORECASE,
)


def read_score(reply: str, highest: float) -> float | None:
    """The score that a reply states; None if there is none.

    It is the last one that fills a line, else the one after the last word ``score``, else a number alone in the last line. What
    the model thought (until ``</think>``) states none.

    Args:
        reply: what the judge wrote.
        highest: the highest score; one that says it is out of another number is none.
    """
    said = behind_thoughts(reply)
    if said == reply and (reply.lstrip().startswith("<think>") or reply.rstrip().rpartition("\n")[2].strip() == "</think>"):
        return None
    reply = said
    named = _STATED.findall(reply) or _SCORE.findall(reply)
    if named:
        number, behind = named[-1]
        out_of = _OUT_OF.match(behind)
        return None if _OTHER_NUMBER.match(behind) or (out_of and float(out_of[1]) != highest) else _value(number)
    lines = [line for line in reply.splitlines() if line.strip()]
    alone = _ALONE.fullmatch(lines[-1]) if lines else None
    return _value(alone[1]) if alone else None


def _value(number: str) -> float:
    return float(re.sub("[−–]", "-", number))  # noqa: RUF001
