"""Makes what a run has recorded fit for the public: the recipe of a model card without secrets, and without this machine in it.

What always holds: no absolute path and no address with host, credentials or query passes; of each, the last name stays at most.
What looks like a secret, by its name or by its form, is left out, and so is the value of each environment variable that is named
like one.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from asyncrl.core.storage.address import is_address, last_name
from asyncrl.envs.secrets import Secrets

LEFT_OUT = "<left out>"
"""Stands where a secret was."""
_ELSEWHERE = ("run_dir", "tracking", "checkpoint", "notify", "network")
"""Sections of a recipe that say where a run was kept and who was told, and nothing about the model."""
_SECRET = (
    r"(?:api|access|private)[_-]?keys?|secret|token|password|passwd|pwd|passphrase|credentials?|auth(?:orization)?"  # in names
)
_SECRET_NAME = re.compile(rf"(?:^|.*[_.-])(?:{_SECRET})(?:[_-](?:id|value))?$|.*_key$", re.IGNORECASE)
_SECRET_OPTION = re.compile(rf"--?(?:[\w-]*-)?(?:{_SECRET})$", re.IGNORECASE)
_SECRET_IN_TEXT = re.compile(
    rf"((?:\b|_)(?:{_SECRET})[\"']?\s*[=:]\s*[\"']?|\b(?:bearer|basic)\s+(?=\S{{8}}))"
    r"(?:(?:bearer|basic|token)\s+)?[^\s,;&'\"]+",
    re.IGNORECASE,
)
_SECRET_FORM = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{16,}|sk-[\w-]{16,}|gh[pousr]_\w{16,}|github_pat_\w{16,}|glpat-[\w-]{16,}|xox[abposr]-[\w-]{8,}"
    r"|(?:AKIA|ASIA)[0-9A-Z]{16}|AIza[\w-]{30,}|eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]+)"
)
_ADDRESS = re.compile(r"\b[A-Za-z][A-Za-z0-9+.-]*://[^\s\"'<>`]*")
_PATH = re.compile(r"(?<![\w/.<~\\])(?:~[\w.-]*)?(?:/[\w.@+%-]+){2,}/?|(?<![\w/.<~\\])~[\w.-]*/[\w.@+%/-]+")
_WINDOWS_PATH = re.compile(r"\b[A-Za-z]:\\[^\s\"'<>`]+")
_SHORTEST = 8
"""The fewest characters of a variable's value that is taken for a secret: ``true`` or ``basic`` is none."""
_LONGEST = 4_000
"""The most characters of a text in a published recipe."""


def published_recipe(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """Return a resolved recipe without the sections on where the run was kept, and with values that may be read by all."""
    return {key: _public(key, value) for key, value in recipe.items() if key not in _ELSEWHERE}


def public_text(text: str) -> str:
    """Return a text with no address, absolute path or secret in it."""
    if text.startswith(("/", "~/")) and "\n" not in text:
        return f".../{text.rstrip('/').rpartition('/')[2]}" if text.strip("/~") else text
    text = _ADDRESS.sub(lambda found: _short_address(found[0]), text)
    text = _PATH.sub(_last_of, _WINDOWS_PATH.sub(_last_of, text))
    return _SECRET_FORM.sub(LEFT_OUT, _SECRET_IN_TEXT.sub(rf"\1{LEFT_OUT}", text))


def without_secrets(text: str, environ: Mapping[str, str]) -> str:
    """Return a text in which the values of environment variables that are named like secrets are their names."""
    secret = {name: value for name, value in environ.items() if _SECRET_NAME.match(name) and len(value) >= _SHORTEST}
    return Secrets(secret).clean(text)


def _public(key: str, value: Any) -> Any:
    match value:
        case str():
            if _SECRET_NAME.match(key) and value:
                return LEFT_OUT
            public = public_text(value)
            return public if len(public) <= _LONGEST else f"{public[:_LONGEST]} ({len(public) - _LONGEST:,} characters more)"
        case bytes():
            return f"({len(value):,} bytes)"
        case Mapping() if key == "variables":  # of an agent's process: nobody knows which of them are secret
            return dict.fromkeys(value, LEFT_OUT)
        case Mapping():
            return {str(name): _public(str(name), each) for name, each in value.items()}
        case list() | tuple():
            return _public_words(key, value)
    return value


def _public_words(key: str, words: Sequence[Any]) -> list[Any]:
    """A list, which may be a command line: the word after ``--token`` is left out."""
    hidden = [isinstance(each, str) and _SECRET_OPTION.match(each) is not None for each in words]
    return [
        LEFT_OUT if number and hidden[number - 1] and isinstance(each, str) else _public(f"{key} ", each)
        for number, each in enumerate(words)
    ]


def _short_address(address: str) -> str:
    scheme = address.partition("://")[0].lower()
    if scheme in ("http", "https", "ws", "wss") or not is_address(address):
        return f"{scheme}://..."  # the path of a web hook is a secret, too
    name = last_name(address)
    return f"{scheme}://.../{name}" if name and "@" not in name and name != address.partition("://")[2] else f"{scheme}://..."


def _last_of(found: re.Match[str]) -> str:
    return f".../{found[0].replace(chr(92), '/').rstrip('/').rpartition('/')[2]}"
