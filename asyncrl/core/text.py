"""Text that can be written anywhere, also when it is of what the user's code raised: neither its length nor its class matters."""

import traceback

TOLD_CHARACTERS = 4_000
"""Characters kept of an error's text or traceback: some hold a whole page or table, which goes to logs, journal and summary."""


def short(value: object) -> str:
    """``value`` as Python writes it, cut after 60 characters."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def writable(text: str) -> str:
    r"""``text`` with each lone half of a surrogate pair spelt out (``\udcff``): UTF-8 has no bytes for it.

    Models write such halves in JSON, and operating systems put them into file names that are not UTF-8.
    """
    return text.encode(errors="backslashreplace").decode()


def text_of(error: BaseException) -> str:
    """The text of what the user's code raised."""
    try:
        return str.__str__(str(error))  # which may be of a class of the user's own
    except BaseException as worse:  # noqa: BLE001 - the text is the user's code, too
        return f"(no text: its __str__ raised {_class_name(worse)})"


def told(error: BaseException) -> str:
    """The name and text of what the user's code raised, the text without its middle where it is very long."""
    return f"{_class_name(error)}: {_without_middle(text_of(error))}"


def traceback_of(error: BaseException) -> str:
    """The traceback of what the user's code raised, without its middle where it is very long; so is the text of each error."""
    try:
        return _without_middle("".join(_without_middle(part, TOLD_CHARACTERS // 4) for part in traceback.format_exception(error)))
    except BaseException as worse:  # noqa: BLE001 - an exception's class and text are the user's code, too
        return f"(no traceback: writing it raised {_class_name(worse)})"


def _class_name(error: BaseException) -> str:
    """The name of the error's class, which its metaclass is not asked for: it may raise, too."""
    name: str = type.__dict__["__name__"].__get__(type(error))
    return name


def _without_middle(text: str, limit: int = TOLD_CHARACTERS) -> str:
    lost, half = len(text) - limit, limit // 2
    return f"{text[:half]} [{lost:,} characters cut] {text[-half:]}" if lost > 0 else text
