"""Makes text that can be written anywhere, even of errors from the user's code, which may be very long or of any class."""

import re
import traceback
from collections.abc import Sequence

import msgspec

KEPT_CHARACTERS = 4_000
"""Characters kept of an error's text or traceback. Some hold a whole page or table, and they go to logs, journal and summary."""

_COPY = re.compile(r"\bgiven_[0-9a-f]{12}:")
"""A module of what a program gave; :mod:`asyncrl.core.plug_ins.given_code` names them."""


_PASSWORD = re.compile(
    r"(\b[A-Za-z][A-Za-z0-9+.-]*://[^:/@?#\s'\"]*:)[^@\s'\"]+(?=@)|([?&](?:password|passwd|pwd|sslpassword)=)[^&\s'\"]+"
)
"""The password in an address, as SQLAlchemy reads it: before the host, or among what databases are told after it."""


def without_passwords(text: str) -> str:
    """Return ``text`` with ``***`` for each password in an address, as in ``postgresql://ann:***@host/db``.

    MLflow takes the password of a database nowhere else, so ``tracking.uri`` may hold one, which is not to be shown.
    """
    return _PASSWORD.sub(lambda found: f"{found[1] or found[2]}***", text)


def short(value: object) -> str:
    """Return ``value`` as Python writes it, cut to 60 characters."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def exact(number: float) -> str:
    """Return a number with as many digits as it has: a bound that a remedy names must not be rounded, or it is refused again."""
    rounded = f"{number:g}"
    return rounded if float(rounded) == number else repr(number)


def pluralize(count: int, thing: str) -> str:
    """Return a number of things, e.g. ``1 version`` or ``4 versions``."""
    return f"{count:,} {thing}" if count == 1 else f"{count:,} {thing}s"


def listed(numbers: Sequence[int], most: int = 12) -> str:
    """Return ascending numbers as a list; of more than ``most``, the first ones, the last one, and how many there are."""
    if len(numbers) <= most:
        return ", ".join(map(str, numbers))
    return f"{', '.join(map(str, numbers[: most - 2]))} ... {numbers[-1]} ({len(numbers)})"


def first_few(names: Sequence[str], most: int, between: str = ", ") -> str:
    """Return the first ``most`` names, and how many more there are."""
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return between.join(names[:most]) + more


def as_the_program_names(text: str) -> str:
    """Return ``text`` in which what a program gave a run has its own name, without the module of the copy."""
    return _COPY.sub("", text)


def writable(text: str) -> str:
    r"""Return ``text`` with each lone half of a surrogate pair spelt out (``\udcff``), since UTF-8 has no bytes for it.

    Models write such halves in JSON, and operating systems put them into file names that are not UTF-8.
    """
    return text.encode(errors="backslashreplace").decode()


def writable_json(value: object) -> bytes:
    r"""Return ``value`` as JSON, in whose texts each lone half of a surrogate pair is spelt out, as :func:`writable` does."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return msgspec.json.encode(_writable(msgspec.to_builtins(value)))


def _writable(value: object) -> object:
    if isinstance(value, str):
        return writable(value)
    if isinstance(value, dict):
        return {_writable(key): _writable(each) for key, each in value.items()}
    return [_writable(each) for each in value] if isinstance(value, list | tuple) else value


def text_of(error: BaseException) -> str:
    """Return the text of an error that the user's code raised."""
    try:
        return str.__str__(str(error))  # str(error) may be of a subclass that the user wrote
    except BaseException as worse:  # noqa: BLE001 - __str__ is the user's code, too
        return f"(no text: its __str__ raised {class_name(worse)})"


def describe_error(error: BaseException) -> str:
    """Return the class name and text of an error that the user's code raised. A very long text loses its middle."""
    return f"{class_name(error)}: {without_middle(text_of(error))}"


def traceback_of(error: BaseException) -> str:
    """Return the traceback of an error that the user's code raised. If it is very long, it loses its middle, and so does the
    text of each error in it."""
    try:
        return without_middle("".join(without_middle(part, KEPT_CHARACTERS // 4) for part in traceback.format_exception(error)))
    except BaseException as worse:  # noqa: BLE001 - an exception's class and text are the user's code, too
        return f"(no traceback: writing it raised {class_name(worse)})"


def class_name(error: BaseException) -> str:
    """Return the name of the error's class. The metaclass is not asked for it, because that may raise, too."""
    name: str = type.__dict__["__name__"].__get__(type(error))
    return name


def without_middle(text: str, limit: int = KEPT_CHARACTERS) -> str:
    """Return ``text`` cut in its middle if it has more than ``limit`` characters."""
    lost, half = len(text) - limit, limit // 2
    return f"{text[:half]} [{lost:,} characters cut] {text[-half:]}" if lost > 0 else text
