"""Multi-turn chat as token ids: sampled turns stay exactly as sampled, and only new text is tokenized.

After a turn, the token stream continues with the *delta*: what the chat template puts between the end of an assistant turn and
the start of the next one. To find it, a conversation is rendered whose assistant turn is a marker; the delta is what
follows the marker's end-of-turn token. So the stream is only ever extended, whatever the model wrote and however the
template would render it again. Text right after the end-of-turn token (often a newline) is part of the delta, so it is
not lost.

A template that asks for the date always gets the same one (:data:`DATE`): else a prompt would change at midnight, in each worker
at another time, and a run that is resumed would train on other prompts than before.

No text in a message or in the description of a tool becomes a control token (see :mod:`generators.control_tokens`), so
it cannot begin or end a turn. A template that separates turns by ordinary text alone is refused.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from asyncrl.core.errors import AsyncRLError
from asyncrl.core.messages import Message, ToolSpec
from asyncrl.core.process.long_import import long_import
from asyncrl.core.text import writable
from asyncrl.envs.hosting.threads import run_in_daemon_thread
from generators.control_tokens import RESERVED, ControlTokens, spelt_out
from generators.token_cache import TokenCache

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_MARKER = f"{RESERVED}assistant turn{RESERVED}"
"""A marker in place of an assistant turn. No template trims or escapes it, and no message can contain it."""
_PROBE = "asyncrlprobe"
"""A placeholder for the content of a message."""

_REMEMBERED_BYTES = 64 * 2**20
"""Bytes of the cache of token ids: all episodes of a group share one prompt, and short tool responses often repeat."""
_LONG = 8_000
"""A text of this many bytes or more is tokenized in a thread, so that other episodes need not wait for it."""

_VOCABULARIES = ("tokenizer.json", "tokenizer.model", "vocab.json", "spiece.model", "tiktoken.model")
"""Files of which at least one holds a tokenizer's vocabulary."""

DATE = datetime(2026, 1, 1, 12)
"""The date and time that templates get, whatever the day."""

_USER, _ASSISTANT, _TOOL = ({"role": role, "content": "Look it up."} for role in ("user", "assistant", "tool"))
_PARAMETERS = {"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]}
_CONVERSATIONS: Sequence[tuple[Sequence[Mapping[str, str]], Sequence[ToolSpec]]] = (
    ((_USER,), ()),
    (({"role": "system", "content": "Be brief."}, _USER), (ToolSpec("look_up", "Looks up.", _PARAMETERS),)),
    ((_USER, _ASSISTANT, _USER, _ASSISTANT, _TOOL, _TOOL), ()),
)
"""Conversations that together make a template write each of its control tokens."""


class TemplateUnsuitable(AsyncRLError):
    """The model's chat template cannot be continued token by token.

    Attributes:
        problem: what is wrong with the template, without its name and the remedy.
    """

    def __init__(self, text: str, problem: str = "") -> None:
        super().__init__(text)
        self.problem = problem or text


class _Ends(msgspec.Struct):
    """What a configuration says of where a turn ends."""

    eos_token_id: int | list[int] | None = None


class ChatFormat:
    """How one model's chat template turns messages into token ids.

    Args:
        tokenizer: a Hugging Face tokenizer with a chat template.
        further_ends: ids of tokens that end a turn as well, of the model's configuration.

    Attributes:
        end_of_turn: id of the token with which the template ends an assistant turn.
        ends_of_turn: ids of all tokens at which sampling stops: the template's first, then those that the model's configuration
            names. The one that was sampled stays in the row, and is followed by what the template writes after its own.
        turn_start: ids of what follows the last message's content and begins the assistant's turn.

    Raises:
        TemplateUnsuitable: no delta can be derived from the template, or its own text cannot be told apart from that of
            messages; the message says why.
    """

    def __init__(self, tokenizer: "PreTrainedTokenizerBase", further_ends: Sequence[int] = ()) -> None:
        self.tokenizer = tokenizer
        if not tokenizer.chat_template:
            raise self._unsuitable("there is none")
        self._control = self._control_tokens()
        self._template = self._control.named(tokenizer.get_chat_template())
        self._template_with_tools = self._control.named(tokenizer.get_chat_template(tools=[]))
        special = {name: self._control.named(token) for name, token in tokenizer.special_tokens_map.items()}
        self._variables: Mapping[str, Any] = {**special, "strftime_now": DATE.strftime}
        self._remembered = TokenCache(_REMEMBERED_BYTES)
        self._tokenizing = asyncio.Lock()
        self._end_name, self.end_of_turn = self._find_end_of_turn()
        eos = tokenizer.eos_token_id
        self.ends_of_turn = tuple(dict.fromkeys((self.end_of_turn, *further_ends, *(() if eos is None else (int(eos),)))))
        self.turn_start = self._check_delta()
        self._check_tokens()

    @classmethod
    def load(cls, model_path: str) -> "ChatFormat":
        """Load the chat format from the tokenizer in a Hugging Face folder.

        Raises:
            TemplateUnsuitable: as the constructor, or the folder has no tokenizer, or one that cannot be loaded.
        """
        remedy = "save the model's tokenizer there (tokenizer.json and tokenizer_config.json)"
        if not any((Path(model_path) / name).is_file() for name in _VOCABULARIES):
            # transformers would make an empty one, of which it only says that it has no special tokens
            raise TemplateUnsuitable(f"{model_path} holds no tokenizer; {remedy}")
        with long_import():
            from transformers import AutoTokenizer  # takes seconds; a process that only starts generators does not need it

        try:
            tokenizer = AutoTokenizer.from_pretrained(model_path)
        except Exception as error:
            raise TemplateUnsuitable(f"the tokenizer in {model_path} cannot be loaded: {_first_line(error)}; {remedy}") from error
        return cls(tokenizer, _named_ends(Path(model_path)))

    async def prompt(self, messages: Sequence[Message], tools: Sequence[ToolSpec] = ()) -> list[int]:
        """Return the first tokens of an episode: messages, tools, and the start of an assistant turn.

        Raises:
            TemplateUnsuitable: the template leaves out tools or system message, or no tool's answer could follow.
        """
        self._check_reaches(messages, tools)
        turns, described = _turns(messages), [_readable_json(tool.as_template_input()) for tool in tools]
        return await self._tokenize(msgspec.msgpack.encode((turns, described)), partial(self._render, turns, described))

    async def delta(self, messages: Sequence[Message]) -> list[int]:
        """Return the tokens after a turn's :attr:`end_of_turn`: the messages, and the start of the next turn.

        Raises:
            TemplateUnsuitable: a tool's answer is among the messages, and the template cannot render one.
        """
        if self._tool_problem and any(message.role == "tool" for message in messages):
            raise self._unsuitable(self._tool_problem)
        turns = _turns(messages)
        return await self._tokenize(
            msgspec.msgpack.encode((turns,)), lambda: self._after_marker(turns).removeprefix(self._end_name)
        )

    def rendered(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[ToolSpec] = (), *, generation: bool = True) -> str:
        """Return a conversation as the template writes it at once, control tokens under their private names.

        Args:
            messages: as chat templates take them, turns of the assistant with their calls among them.
            generation: whether the start of an assistant turn is to follow.
        """
        return self._render(
            [_readable_json(dict(each)) for each in messages], [each.as_template_input() for each in tools], generation
        )

    def until_end(self, rendered: str) -> str:
        """Return what a text rendered with private names has before the end of an assistant turn."""
        return rendered.partition(self._end_name)[0]

    def encode(self, rendered: str) -> list[int]:
        """Return the token ids of a text rendered with private names."""
        return self._control.encode(rendered)

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text of ``token_ids``, with special tokens, because a tool parser may look for them."""
        text: str = self.tokenizer.decode(token_ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return text

    def turn_text(self, token_ids: Sequence[int]) -> str:
        """Return the text of one sampled turn without the token that ended it."""
        ended = len(token_ids) > 0 and token_ids[-1] in self.ends_of_turn
        return self.decode(token_ids[:-1] if ended else token_ids)

    async def _tokenize(self, key: bytes, render: Callable[[], str]) -> list[int]:
        """Return the token ids of the text that ``render`` returns, cached under ``key``.

        Long texts are tokenized in a thread, one at a time, so that a group's episodes wait for their common prompt.
        """
        if len(key) < _LONG:
            return self._ids(key, render)
        async with self._tokenizing:
            return await run_in_daemon_thread(partial(self._ids, key, render), name="tokenizing")

    def _ids(self, key: bytes, render: Callable[[], str]) -> list[int]:
        ids = self._remembered.get(key)
        if ids is None:
            ids = self._control.encode(render())
            self._remembered.keep(key, ids)
        return ids

    def _render(
        self, turns: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = (), generation: bool = True
    ) -> str:
        """Return the text that the template writes, with control tokens under their private names."""
        rendered: str = self.tokenizer.apply_chat_template(
            list(turns),
            tools=list(tools) or None,
            chat_template=self._template_with_tools if tools else self._template,
            add_generation_prompt=generation,
            tokenize=False,
            **self._variables,
        )
        return rendered

    def _after_marker(self, turns: Sequence[Mapping[str, str]], generation: bool = True) -> str:
        """Return the text that is rendered after the marked assistant turn when ``turns`` follow it."""
        marked = ({"role": "user", "content": "?"}, {"role": "assistant", "content": _MARKER})
        _, marker, after = self._render((*marked, *turns), generation=generation).partition(_MARKER)
        if not marker or _MARKER in after:
            raise self._unsuitable("it does not render the content of an assistant turn exactly once")
        return after

    def _control_tokens(self) -> ControlTokens:
        backend = getattr(self.tokenizer, "backend_tokenizer", None)
        if backend is None:
            raise TemplateUnsuitable(
                f"the {type(self.tokenizer).__name__} of {self.tokenizer.name_or_path!r} cannot keep text from becoming special "
                "tokens; put a fast tokenizer (tokenizer.json) into the model's folder"
            )
        return ControlTokens(backend)

    def _find_end_of_turn(self) -> tuple[str, int]:
        """Find the token that ends an assistant turn; returns its private name and its id."""
        try:
            ending = self._after_marker((), generation=False)
        except TemplateUnsuitable:
            raise
        except Exception as error:  # a syntax error, or whatever the template's own code raises
            raise self._unsuitable(f"it does not render a turn of each of user and assistant ({_first_line(error)})") from error
        name = self._control.first_name(ending)
        ids = self._control.encode(name)
        if not ids or ids[0] not in {*self.tokenizer.all_special_ids, self.tokenizer.eos_token_id}:
            shown = self._shown(ending)
            raise self._unsuitable(f"an assistant turn is followed by {shown}, which does not begin with a special token")
        return name, ids[0]

    def _check_delta(self) -> list[int]:
        """Check that a message can follow a sampled turn, and that none can begin an assistant turn.

        Returns the ids of what follows a user's message.
        """
        self._tool_problem = self._problem_of_delta("tool")
        if self._tool_problem and (problem := self._problem_of_delta("user")):
            raise self._unsuitable(problem)
        return self._control.encode(self._render(({"role": "user", "content": _PROBE},)).rpartition(_PROBE)[2])

    def _problem_of_delta(self, role: str) -> str:
        """Say why a message of ``role`` cannot follow a sampled turn; empty if it can."""
        what = {"tool": "tool response", "user": "user's message"}[role]
        try:
            after = self._after_marker(({"role": role, "content": _PROBE},))
        except TemplateUnsuitable as error:
            return error.problem
        except Exception as error:  # noqa: BLE001 - whatever the template's own code raises
            return f"it does not render a {what} after an assistant turn ({_first_line(error)})"
        end = self._end_name
        if not after.startswith(end):
            return f"an assistant turn ends with {self._shown(end)} only where the conversation ends"
        if _PROBE not in after:
            return f"it leaves out the content of a {what}"
        question = ({"role": "user", "content": _PROBE},)
        prompt = self._render(question)
        start = prompt.removeprefix(self._render(question, generation=False))
        if not after.endswith(start) or not (start or self._control.last_name(after) != end):
            return f"a {what} is not followed by the start of an assistant turn, {self._shown(start)}"
        for rendered in (prompt, after):
            between = rendered.rpartition(_PROBE)[2]
            if not self._control.last_name(between):
                problem = f"only ordinary text, {between!r}, separates a message from the assistant's turn"
                return f"{problem}, and a message may contain the same text"
        return ""

    @cached_property
    def _shows_tools(self) -> bool:
        """Whether a description of tools reaches the prompt. A template that raises says more of why when the prompt is made."""
        question, tool = [{"role": "user", "content": "?"}], ToolSpec(_PROBE, "Does it.", _PARAMETERS)
        try:
            return _PROBE in self._render(question, [tool.as_template_input()])
        except Exception:  # noqa: BLE001
            return True

    @cached_property
    def _shows_system(self) -> bool:
        """Whether a system message reaches the prompt. A template that raises says more of why when the prompt is made."""
        try:
            return _PROBE in self._render([{"role": "system", "content": _PROBE}, {"role": "user", "content": "?"}])
        except Exception:  # noqa: BLE001
            return True

    def _check_reaches(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> None:
        """Refuse a prompt of which the template would leave out a part without a word."""
        if tools and self._tool_problem:
            raise self._unsuitable(self._tool_problem)
        if tools and not self._shows_tools:
            raise self._unsuitable("it leaves out the tools, so the model would never see them")
        if not self._shows_system and any(message.role == "system" for message in messages):
            raise self._unsuitable("it leaves out the system message, so the model would never see it")

    def _check_tokens(self) -> None:
        """Check that private names do not change what the template writes.

        For that, its source must contain each control token as one piece.
        """
        from jinja2 import TemplateError  # comes with transformers

        for turns, tools in _CONVERSATIONS:
            described = [tool.as_template_input() for tool in tools]
            try:
                usual = self.tokenizer.apply_chat_template(
                    list(turns), described or None, add_generation_prompt=True, tokenize=False, strftime_now=DATE.strftime
                )
            except (TemplateError, TypeError):
                continue  # no system role or no tools: an environment that uses them gets an error later
            if self._control.encode(self._render(turns, described)) != self.tokenizer.encode(usual, add_special_tokens=False):
                raise self._unsuitable(
                    "it builds special tokens from pieces, as '<|' + role + '|>' does; write each as one piece"
                )

    def _shown(self, rendered: str) -> str:
        return repr(self._control.unnamed(rendered))

    def _unsuitable(self, problem: str) -> TemplateUnsuitable:
        return TemplateUnsuitable(
            f"the chat template of {self.tokenizer.name_or_path or 'this tokenizer'} cannot be continued token by token: "
            f"{problem}; put a template into the model's folder (chat_template.jinja) that ends each turn with one special token "
            "and knows the roles system, user, assistant and tool",
            problem,
        )


def _named_ends(folder: Path) -> list[int]:
    """Return the ids at which the model's own configuration stops: ``eos_token_id`` of generation_config.json and config.json.

    Raises:
        TemplateUnsuitable: one of the files cannot be read, or names something that is no id.
    """
    ends: list[int] = []
    for file in (folder / "generation_config.json", folder / "config.json"):
        if not file.is_file():
            continue
        try:
            named = msgspec.json.decode(file.read_bytes(), type=_Ends).eos_token_id
        except (OSError, msgspec.DecodeError) as error:
            raise TemplateUnsuitable(
                f"{file} cannot be read: {error}; its eos_token_id must be a token id or a list of them"
            ) from error
        ends += [] if named is None else [named] if isinstance(named, int) else named
    return ends


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _turns(messages: Sequence[Message]) -> list[dict[str, str]]:
    """Convert messages to the form that a template takes, with text that a tokenizer can read."""
    return [{"role": message.role, "content": _readable(message.content)} for message in messages]


def _readable(text: str) -> str:
    return text if text.isascii() else spelt_out(writable(text))


def _readable_json(value: Any) -> Any:
    """Return the JSON ``value`` with texts that a tokenizer can read, and that hold no private name."""
    match value:
        case str():
            return _readable(value)
        case dict():
            return {_readable_json(key): _readable_json(part) for key, part in value.items()}
        case list() | tuple():
            return type(value)(_readable_json(part) for part in value)
        case _:
            return value
