"""What a row's columns are: which of them is the prompt, the id, the tools, and what the environment gets of the others.

What always holds: nothing is guessed. A column has another role than its name says, or is the JSON text of what it holds, only if
the recipe says so.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from asyncrl.buffers.tasks.plain_values import fitting
from asyncrl.core.chat_prompt import chat_prompt, closing_turn, why_no_chat
from asyncrl.core.described_tools import described_tools
from asyncrl.core.messages import Message, ToolSpec
from asyncrl.core.recipe.tasks import TaskFileConfig
from asyncrl.core.text import short

PROMPT, ID, TOOLS, SYSTEM = "prompt", "id", "tools", "system"
_MISSING = object()


class Misfit(Exception):
    """Why a row is not a task; reads well after the row's place."""


class Asked(NamedTuple):
    """What a row asks: the prompt, the tools that the model is told of, and what the assistant's closing turn gives as data."""

    prompt: str | tuple[Message, ...]
    tools: tuple[ToolSpec, ...]
    reference: Mapping[str, Any]


class Columns:
    """The columns of one source.

    Attributes:
        prompt, id: where the prompt and the id are; a dot leads into an object.
        mapped: all that the recipe says of columns, by its key.
        long_integers: JSON texts in which integers of more than 64 bits were found, which are given as texts.
    """

    def __init__(self, file: TaskFileConfig) -> None:
        self.mapped, self._json, self._reference = dict(file.columns), file.json, file.reference
        self.long_integers: dict[str, None] = {}
        own = dict(file.columns)
        self.prompt, self.id = own.pop(PROMPT, PROMPT), own.pop(ID, ID)
        self._tools, self._system = own.pop(TOOLS, ""), own.pop(SYSTEM, "")
        self._data = own
        # Columns that have another place now; those of which only a part is taken stay.
        self._taken = {self.prompt, self.id, self._tools, self._system, *own.values()}

    @property
    def shows_tools(self) -> bool:
        """Whether the model is told of a column's tools."""
        return bool(self._tools)

    def needed(self) -> list[str]:
        """Return the columns that tell what a row asks, and its id; some may not be there."""
        paths = filter(None, (self.prompt, self.id, self._tools, self._system))
        return list(dict.fromkeys(name for path in paths for name in (path, path.partition(".")[0])))

    def paths(self) -> Iterator[tuple[str, str]]:
        """Yield what the recipe names: the key below the source, and the column."""
        yield from ((f"columns.{key}", path) for key, path in self.mapped.items())
        yield from ((f"json[{number}]", path) for number, path in enumerate(self._json or ()))

    def own_id(self, row: Mapping[str, Any]) -> Any:
        """Return the row's id; None if it has none."""
        try:
            found = self._read(row, self.id)
        except Misfit:  # which is told when it is asked what the row asks
            return None
        return None if found is _MISSING else found

    def has(self, row: Mapping[str, Any], path: str) -> bool:
        """Whether a row has something at a path, or text that is no JSON where it leads into JSON text."""
        try:
            return self._read(row, path) is not _MISSING
        except Misfit:
            return True

    def leads_into_text(self, path: str) -> bool:
        """Whether a path goes on in what the recipe says is JSON text."""
        return any(path.startswith(f"{outer}.") for outer in self._json or ())

    def asked(self, row: Mapping[str, Any]) -> Asked:
        """Return what a row asks.

        Raises:
            Misfit: it is not a task.
        """
        prompt, reference = self._read(row, self.prompt), dict[str, Any]()
        if prompt is _MISSING:
            raise Misfit(f"has no {self.prompt!r}, only {', '.join(map(repr, row)) or 'an empty object'}")
        if self._json is None and _is_chat_text(prompt):
            said = f"say so (json: [{self.prompt}]), or that the text itself is asked (json: [])"
            raise Misfit(f"has chat messages as JSON text for a prompt; {said}")
        if isinstance(prompt, list) and self._reference:
            prompt, last = closing_turn(prompt)
            if last is None:
                raise Misfit(
                    f"has no closing turn of the assistant, which reference names {self._reference!r}; leave that key out"
                )
            reference = {self._reference: last.content}
            if last.tool_calls:
                reference[f"{self._reference}_calls"] = [
                    {"name": call.name, "arguments": call.arguments} for call in last.tool_calls
                ]
        if problem := why_no_prompt(prompt):
            raise Misfit(problem + self._closing_remedy(prompt))
        messages = prompt if isinstance(prompt, str) else chat_prompt(prompt)
        return Asked(self._with_system(row, messages), self._described(row), reference)

    def data(self, row: Mapping[str, Any], reference: Mapping[str, Any]) -> dict[str, Any]:
        """Return what the environment gets of a row."""
        found = {name: self._plain(name, value) for name, value in row.items() if name not in self._taken}
        for key, path in self._data.items():
            value = self._read(row, path)
            found[key] = None if value is _MISSING else value
        return found | dict(reference)

    def check_data(self, row: Mapping[str, Any], whole: bool) -> None:
        """Refuse a row that lacks a column which the recipe names, or has other text than JSON in one of JSON text.

        Args:
            whole: whether all columns of the row are there; otherwise only its JSON text is.

        Raises:
            Misfit: it does.
        """
        for path in self._data.values():
            if (whole or self.leads_into_text(path)) and self._read(row, path) is _MISSING:
                raise Misfit(f"has no {path!r}, only {', '.join(map(repr, row))}")
        self.data(row, {})

    def _closing_remedy(self, prompt: object) -> str:
        ends = isinstance(prompt, list) and not self._reference and closing_turn(prompt)[1] is not None
        return "; or set reference to the key under which the environment gets that turn" if ends else ""

    def _with_system(self, row: Mapping[str, Any], prompt: str | tuple[Message, ...]) -> str | tuple[Message, ...]:
        system = self._read(row, self._system) if self._system else None
        if system is None or system is _MISSING or system == "":
            return prompt
        if not isinstance(system, str):
            raise Misfit(f"has system message {short(system)}; give a text")
        messages = (Message("user", prompt),) if isinstance(prompt, str) else prompt
        if messages[0].role == "system":
            raise Misfit(f"has a system message in its prompt and one in {self._system!r}; leave columns.system out")
        return (Message("system", system), *messages)

    def _described(self, row: Mapping[str, Any]) -> tuple[ToolSpec, ...]:
        tools = self._read(row, self._tools) if self._tools else None
        if isinstance(tools, str) and self._json is None:
            raise Misfit(f"has tools {short(tools)}, a text; if it is JSON, say so (json: [{self._tools}])")
        try:
            return described_tools(None if tools is _MISSING else tools)
        except ValueError as error:
            raise Misfit(f"has {error}") from error

    def _read(self, row: Mapping[str, Any], path: str) -> Any:
        found = at(row, path)
        if found is not _MISSING:
            return self._plain(path, found)
        outer = next((outer for outer in self._json or () if path.startswith(f"{outer}.")), None)
        inner = None if outer is None else self._read(row, outer)
        return at(inner, path.removeprefix(f"{outer}.")) if isinstance(inner, Mapping) else _MISSING

    def _plain(self, path: str, value: Any) -> Any:
        """Return the value of a column, decoded if the recipe says that it is JSON text."""
        if path in (self._json or ()) and isinstance(value, str):
            try:
                decoded = msgspec.json.decode(value)
                value = fitting(decoded)
                if value != decoded:
                    self.long_integers[path] = None
            except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
                raise Misfit(f"has {short(value)} in {path!r}, which is no JSON text ({error})") from error
        if isinstance(value, dict):
            return {key: self._plain(f"{path}.{key}", each) for key, each in value.items()} if self._reaches_into(path) else value
        return value

    def _reaches_into(self, path: str) -> bool:
        return any(each.startswith(f"{path}.") for each in self._json or ())


def at(row: Mapping[str, Any], path: str) -> Any:
    """Return what a row has at a path; :data:`_MISSING` if nothing. A column's own name comes before a way into an object."""
    if path in row:
        return row[path]
    name, dot, rest = path.partition(".")
    inner = row.get(name)
    return at(inner, rest) if dot and isinstance(inner, Mapping) else _MISSING


def why_no_prompt(prompt: object) -> str:
    """Say why a value is not a prompt; empty if it is one."""
    if isinstance(prompt, str):
        return "" if prompt.strip() else f"has an empty prompt, {prompt!r}; ask the model something"
    if isinstance(prompt, list):
        return why_no_chat(prompt)
    return f"has prompt {short(prompt)}"


def _is_chat_text(prompt: Any) -> bool:
    """Whether a text is the JSON of chat messages, as tables of texts have them. As a question it would make no sense."""
    if not isinstance(prompt, str) or not prompt.lstrip().startswith("["):
        return False
    try:
        messages: Sequence[Any] = msgspec.json.decode(prompt)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return False
    keys = ({"role", "content"}, {"from", "value"})
    return bool(messages) and all(isinstance(each, dict) and any(own <= each.keys() for own in keys) for each in messages)
