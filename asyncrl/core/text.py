"""Text that can be written anywhere."""

TOLD_CHARACTERS = 4_000
"""Characters kept of an error's text: some hold a whole page or table, and it goes to logs, the journal and the summary."""


def writable(text: str) -> str:
    r"""``text`` with each half of a surrogate pair spelt out (``\udcff``): it is no character, and UTF-8 has no bytes for it.

    Models write them in JSON, and operating systems put them into names of files that are no UTF-8.
    """
    return text.encode(errors="backslashreplace").decode()


def text_of(error: BaseException) -> str:
    """The text of what the user's code raised."""
    try:
        return str(error)
    except BaseException as worse:  # noqa: BLE001 - the text is the user's code, too
        return f"(no text: its __str__ raised {type(worse).__name__})"


def told(error: BaseException) -> str:
    """The name and text of what the user's code raised, the text without its middle where it is very long."""
    text = text_of(error)
    if (lost := len(text) - TOLD_CHARACTERS) > 0:
        half = TOLD_CHARACTERS // 2
        text = f"{text[:half]} [{lost:,} characters cut] {text[-half:]}"
    return f"{type(error).__name__}: {text}"
