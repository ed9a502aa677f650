"""Text that can be written anywhere."""


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
    """The name and text of what the user's code raised."""
    return f"{type(error).__name__}: {text_of(error)}"
