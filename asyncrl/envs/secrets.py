"""The secrets of environments: read where a run is launched, handed to its generators, and shown nowhere.

What always holds: the values stand in no recipe, run folder or log of ours. A :class:`Secrets` never shows them, and text of the
user's code is cleaned of them before it is logged, counted or told to the model.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from asyncrl.core.errors import RecipeError
from asyncrl.core.plug_ins.users_error import UsersError
from asyncrl.core.recipe.environment import EnvironmentConfig, member_place

SHORTEST = 4
"""The fewest characters of a value that is looked for in texts: a shorter one would be found where it was not meant."""


class Secrets(Mapping[str, str]):
    """Values of environment variables by name, which are not shown when the mapping is printed."""

    def __init__(self, values: Mapping[str, str] | None = None) -> None:
        self._values = dict(values or {})

    def __getitem__(self, name: str) -> str:
        try:
            return self._values[name]
        except KeyError:
            known = ", ".join(self._values) or "none"
            raise KeyError(f"{name!r} is not among the recipe's environment.secrets ({known})") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"Secrets({', '.join(self._values)})"

    def only(self, names: Sequence[str]) -> "Secrets":
        """Return the secrets of these names."""
        return Secrets({name: self[name] for name in names})

    def clean(self, text: str) -> str:
        """Return ``text`` with each secret's value replaced by its name, as ``<NAME>``."""
        # The longest first: one value may be part of another.
        for name, value in sorted(self._values.items(), key=lambda item: -len(item[1])):
            if len(value) >= SHORTEST:
                text = text.replace(value, f"<{name}>")
        return text

    def cleaned(self, error: UsersError) -> UsersError:
        """Return the error with clean texts."""
        return msgspec.structs.replace(error, problem=self.clean(error.problem), traceback=self.clean(error.traceback))


def read_secrets(environment: EnvironmentConfig, variables: Mapping[str, str]) -> Secrets:
    """Take the secrets that an environment needs from ``variables``, which are those of this process.

    Raises:
        RecipeError: a variable is not set, is empty, or is a token that cannot be sent.
    """
    found: dict[str, str] = {}
    for member, spec in environment.by_member.items():
        for name in spec.secret_variables:
            read = read_token if name == getattr(spec, "token_variable", None) else read_secret
            found[name] = read(name, member_place(member), variables)
    return Secrets(found)


def read_secret(name: str, place: str, variables: Mapping[str, str]) -> str:
    """Take the secret called ``name`` from ``variables``.

    Raises:
        RecipeError: at ``place``; the variable is not set, or is empty.
    """
    if not (value := variables.get(name, "")):
        problem = f"the environment variable {name} is {'empty' if name in variables else 'not set'}"
        raise RecipeError(place, problem, f"export {name}=... where you launch")
    return value


def read_token(name: str, place: str, variables: Mapping[str, str]) -> str:
    """Take a secret that is sent as bearer token. Raises what :func:`read_secret` does, also if no header may have it."""
    token = read_secret(name, place, variables)
    if not all("!" <= character <= "~" for character in token):
        problem = f"the value of {name} has a space, a line's end or a character that is not ASCII, which no token has"
        raise RecipeError(place, problem, f"export {name} without it")
    return token


def clean_logs(secrets: Secrets, handlers: Sequence[Any]) -> None:
    """Have logging ``handlers`` write clean texts, tracebacks included."""
    for handler in handlers:
        write = handler.format

        def format_clean(record: Any, write: Any = write) -> str:
            return secrets.clean(write(record))

        handler.format = format_clean
