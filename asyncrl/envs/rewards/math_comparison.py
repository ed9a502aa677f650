"""Compares answers with ``math-verify``, in a process of :mod:`asyncrl.envs.hosting.tool_processes`.

An answer that takes it too long ends it, even if whoever asked is gone; one that takes it too much memory is not compared.
"""

import json
import logging
import re
import resource
import signal
import sys
from collections.abc import Sequence
from functools import cache, lru_cache
from typing import Any

from math_verify import parse, verify

from asyncrl.envs.hosting.process_functions import ProcessFunctions
from asyncrl.envs.rewards.math_choices import choice_in
from asyncrl.envs.rewards.math_forms import Form, Kind, equal, form_of, words
from asyncrl.envs.rewards.math_numbers import number_of, to_be_computed
from asyncrl.envs.rewards.math_text import expected_part, final_part, is_prose, readings, tidied
from asyncrl.envs.stated_answer import behind_thoughts

MEMORY_BYTES = 4 << 30
"""Address space of the process; sympy and what it imports take about a quarter of a GiB."""

LONGEST_PART = 2_000
"""Characters of the part of an answer that counts."""

_UNDONE = re.compile(r"\\(?:sum|prod|i*int|lim|limsup|liminf|max|min|sup|gcd|det)(?![A-Za-z])")
"""What remains to be done. An answer that has it, where the expected one has not, repeats the question."""
_UNREAD = re.compile(r"(?<![a-z\d])(?<![a-z\d] )\d+ +\d|\d\s*\|+\s*\d|\.\.|[?@#&`]|\\\\|^(?:\\(?:ge|le|ne)(?![a-z])|[<>])")
"""Two numbers side by side, and what math-verify leaves out, or takes for the end of an expression."""


class Comparing(ProcessFunctions):
    """The function that the process runs."""

    @staticmethod
    def compare(expected: str, answer: str, seconds: float) -> str:
        """Say, as JSON, whether the expected answer can be read, and whether both are equal."""
        _prepare()
        signal.setitimer(signal.ITIMER_REAL, seconds)  # nobody handles the signal, so it ends the process
        wanted = wanted_of(expected)
        equal = wanted is not None and is_equal(wanted, answer)
        signal.setitimer(signal.ITIMER_REAL, 0)
        return json.dumps({"known": wanted is not None, "equal": equal})


@cache
def _prepare() -> None:
    """Bound the memory of this process, and keep math-verify quiet, which warns that it has no deadline of its own."""
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = MEMORY_BYTES if hard == resource.RLIM_INFINITY else min(MEMORY_BYTES, hard)
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
    logging.disable()
    sys.set_int_max_str_digits(100_000)


def wanted_of(expected: str) -> Form | None:
    """The form of an expected answer, of which a solution that ends with it may be given; None if it cannot be read."""
    found = expected_part(behind_thoughts(expected))
    text, marked = (tidied(found[0]), found[1]) if found else ("", False)
    if not text or len(text) > LONGEST_PART:
        return None
    choice = choice_in(text)
    if choice is not None and choice.sure and not choice.loose:
        said = _readable(choice.said, choice.said == "" or is_prose(choice.said))
        return Form(Kind.CHOICE, choice.letter, (said,) if said and choice.said else ())
    return _readable(text, is_prose(text) and not marked)


def _readable(text: str, are_words: bool) -> Form | None:
    form = Form(Kind.WORDS, words(text)) if are_words else form_of(text)
    return form if all(_read(each) for each in form.expressions()) else None


def is_equal(wanted: Form, answer: str) -> bool:
    """Whether what counts of an answer is the one that is wanted."""
    answer = behind_thoughts(answer)
    part, marked = final_part(answer)
    texts = [text for text in map(tidied, readings(part)) if 0 < len(text) <= LONGEST_PART]
    if wanted.kind is Kind.CHOICE:
        choice = next((choice for choice in map(choice_in, texts) if choice is not None), None)
        if choice is not None and (choice.letter == wanted.text or choice.sure):
            return choice.letter == wanted.text
        return any(is_equal(said, answer) for said in wanted.parts)
    if wanted.kind is Kind.WORDS and any(
        wanted.text == words(text) or (wanted == form_of(text) and not is_prose(text)) for text in texts
    ):
        return True
    plain = next((text for text in texts if not is_prose(text)), None)
    if plain is not None:
        return equal(wanted, form_of(plain), _same)
    if marked or wanted.kind is not Kind.EXPRESSION:
        return False
    found = _parsed(answer)  # prose, of which the last expression counts
    return not any(to_be_computed(wanted.text, tidied(each)) for each in found if isinstance(each, str)) and _verified(
        _read(wanted.text), found
    )


@lru_cache(maxsize=1024)
def _read(expression: str) -> tuple[Any, ...]:
    """Return what math-verify reads in an expression; nothing if it is none."""
    tight = re.sub(" *([-+]) *", r"\1", expression)  # the c of `a + c` would be a unit
    return tuple(each for each in _parsed(f"${tight}$") if not isinstance(each, str))


def _parsed(text: str) -> list[Any]:
    """Return what math-verify finds in a text: an expression, and how it is written there."""
    found: list[Any] = parse(text, parsing_timeout=None)
    return found


def _same(wanted: str, given: str) -> bool:
    if {*_UNDONE.findall(given)} - {*_UNDONE.findall(wanted)} or (_UNREAD.search(given) and not _UNREAD.search(wanted)):
        return False
    exact, number = number_of(wanted), number_of(given)
    if exact is not None and number is not None and exact.denominator == 1:
        return exact == number
    return not to_be_computed(wanted, given) and _verified(_read(wanted), _read(given))


def _verified(wanted: Sequence[Any], given: Sequence[Any]) -> bool:
    return bool(wanted and given and verify(list(wanted), list(given), timeout_seconds=None))
