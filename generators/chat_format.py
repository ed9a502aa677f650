"""Multi-turn chat as token ids: sampled turns stay exactly as sampled, and only new text is tokenized.

After a turn, the token stream continues with the *delta*: what the chat template puts between the end of an assistant turn and
the start of the next one (see ``generators/chat_template.py``). So the stream is only ever extended, whatever the model wrote and
however the template would render it again.

No text in a message or in the description of a tool becomes a control token (see :mod:`asyncrl.generators.control_tokens`), so
it cannot begin or end a turn.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from asyncrl.core.messages import Message, ToolSpec
from asyncrl.core.process.long_import import long_import
from asyncrl.core.recipe.schema import ModelConfig
from asyncrl.core.text import writable
from asyncrl.envs.hosting.threads import run_in_daemon_thread
from asyncrl.generators.chat_template import NO_ARGUMENTS, REMEDY, ChatTemplate, TemplateUnsuitable, first_line
from asyncrl.generators.control_tokens import ControlTokens, spelt_out
from asyncrl.generators.template_choice import DEFAULT, FOR_TOOLS, template_files, templates_of
from asyncrl.generators.token_cache import TokenCache

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_REMEMBERED_BYTES = 64 * 2**20
"""Bytes of the cache of token ids: all episodes of a group share one prompt, and short tool responses often repeat."""
_LONG = 8_000
"""A text of this many bytes or more is tokenized in a thread, so that other episodes need not wait for it."""

_VOCABULARIES = ("tokenizer.json", "tokenizer.model", "vocab.json", "spiece.model", "tiktoken.model")
"""Files of which at least one holds a tokenizer's vocabulary."""


class _Ends(msgspec.Struct):
    """What a configuration says of where a turn ends."""

    eos_token_id: int | list[int] | None = None


AnyMessage = Message | Mapping[str, Any]
"""A message, or one as chat templates take it, which may have calls."""


class ChatFormat:
    """How one model's chat templates turn messages into token ids.

    Where the model has a template for conversations with tools, an episode with tools has its prompt and all that follows from
    it, and one without tools from the other.

    Args:
        tokenizer: a Hugging Face tokenizer.
        model: the recipe's section, which may name another template, and values of its variables; None leaves all as it is.
        further_ends: ids of tokens that end a turn as well, of the model's configuration.

    Attributes:
        end_of_turn: id of the token with which the template ends an assistant turn.
        ends_of_turn: ids of all tokens at which sampling stops: the template's first, then those that the model's configuration
            names. The one that was sampled stays in the row, and is followed by what the template writes after its own.
        templates: the templates by name, as they are rendered.

    Raises:
        TemplateUnsuitable: no delta can be derived from the template, or its own text cannot be told apart from that of
            messages; the message says why.
        RecipeError: the recipe sets a variable that no template reads.
    """

    def __init__(
        self, tokenizer: "PreTrainedTokenizerBase", model: ModelConfig | None = None, further_ends: Sequence[int] = ()
    ) -> None:
        self.tokenizer = tokenizer
        self.templates = templates_of(tokenizer.chat_template, model or ModelConfig(path=tokenizer.name_or_path or "tokenizer"))
        of = tokenizer.name_or_path or "this tokenizer"
        whose = f"of {of}" if model is None or model.chat_template is None else f"that the recipe names for {of}"
        if DEFAULT not in self.templates:
            found = (
                f"there are only {', '.join(self.templates)}, and none is named {DEFAULT}" if self.templates else "there is none"
            )
            raise TemplateUnsuitable(f"no chat template {whose}: {found}; {REMEDY}", found)
        self._control = self._control_tokens()
        self._usual = self._template(DEFAULT, f"the chat template {whose}")
        self._for_tools: ChatTemplate | TemplateUnsuitable = self._usual
        if FOR_TOOLS in self.templates:
            try:
                self._for_tools = self._template(FOR_TOOLS, f"the chat template {FOR_TOOLS} {whose}")
            except TemplateUnsuitable as error:
                self._for_tools = error  # raised once there are tools
        self._remembered = TokenCache(_REMEMBERED_BYTES)
        self._tokenizing = asyncio.Lock()
        self.end_of_turn = self._usual.end_of_turn
        own = [each.end_of_turn for each in (self._usual, self._for_tools) if isinstance(each, ChatTemplate)]
        eos = tokenizer.eos_token_id
        self.ends_of_turn = tuple(dict.fromkeys((*own, *further_ends, *(() if eos is None else (int(eos),)))))

    @classmethod
    def load(cls, model_path: str, model: ModelConfig | None = None) -> "ChatFormat":
        """Load the chat format from the tokenizer in a Hugging Face folder.

        Args:
            model: as in the constructor.

        Raises:
            TemplateUnsuitable: as the constructor, or the folder has no tokenizer, or one that cannot be loaded.
            RecipeError: as the constructor.
        """
        remedy = "save the model's tokenizer there (tokenizer.json and tokenizer_config.json)"
        if not any((Path(model_path) / name).is_file() for name in _VOCABULARIES):
            # transformers would make an empty one, of which it only says that it has no special tokens
            raise TemplateUnsuitable(f"{model_path} holds no tokenizer; {remedy}")
        with long_import():
            from transformers import AutoTokenizer  # takes seconds; a process that only starts generators does not need it

        for file in template_files(Path(model_path)).values():  # transformers reads them with the tokenizer, and blames that
            try:
                file.read_text("utf-8")
            except UnicodeDecodeError as error:
                raise TemplateUnsuitable(f"the chat template {file} is not UTF-8: {error}; save it as UTF-8") from error
        try:
            tokenizer = AutoTokenizer.from_pretrained(model_path)
        except Exception as error:
            raise TemplateUnsuitable(f"the tokenizer in {model_path} cannot be loaded: {first_line(error)}; {remedy}") from error
        return cls(tokenizer, model, _named_ends(Path(model_path)))

    async def prompt(
        self, messages: Sequence[AnyMessage], tools: Sequence[ToolSpec] = (), arguments: Mapping[str, Any] = NO_ARGUMENTS
    ) -> list[int]:
        """Return the first tokens of an episode: messages, tools, and the start of an assistant turn.

        Args:
            arguments: values of the template's own variables, such as ``enable_thinking``.

        Raises:
            TemplateUnsuitable: the template leaves out tools or system message, or no tool's answer could follow.
        """
        template = self._of(tools)
        turns, described = _turns(messages), [_readable_json(tool.as_template_input()) for tool in tools]
        template.check_reaches(turns, tools)
        key = msgspec.msgpack.encode((turns, described, arguments))
        return await self._tokenize(key, partial(template.render, turns, described, arguments=arguments))

    async def delta(
        self,
        messages: Sequence[AnyMessage],
        tools: Sequence[ToolSpec] = (),
        arguments: Mapping[str, Any] = NO_ARGUMENTS,
        *,
        after: int | None = None,
    ) -> list[int]:
        """Return the tokens after a turn: the messages, and the start of the next turn.

        Args:
            tools, arguments: those of the prompt.
            after: the turn's last token. If it is none of :attr:`ends_of_turn`, the template's own comes first; None stands for
                one of them.

        Raises:
            TemplateUnsuitable: a tool's answer is among the messages, and the template cannot render one.
        """
        template = self._of(tools)
        turns = _turns(messages)
        template.check_follows(turns)
        key = msgspec.msgpack.encode((turns, template is self._usual, arguments))
        ids = await self._tokenize(key, lambda: template.delta(turns, arguments))
        return ids if after is None or after in self.ends_of_turn else [template.end_of_turn, *ids]

    @property
    def takes_system_later(self) -> bool:
        """Whether a system message may follow a turn, in all of the model's templates."""
        templates = (self._usual, self._for_tools)
        return all(each.takes_system_later for each in templates if isinstance(each, ChatTemplate))

    def arguments_read(self, arguments: Mapping[str, Any], tools: Sequence[ToolSpec]) -> dict[str, Any]:
        """Return those of ``arguments`` that the template of conversations with these tools reads."""
        read = self._of(tools).variables
        return {name: value for name, value in arguments.items() if name in read}

    def turn_start(self, tools: Sequence[ToolSpec] = ()) -> list[int]:
        """Return the ids of what follows the last message's content and begins the assistant's turn."""
        return self._of(tools).turn_start

    def rendered(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[ToolSpec] = (), *, generation: bool = True) -> str:
        """Return a conversation as the template writes it at once, control tokens under their private names.

        Args:
            messages: as chat templates take them, turns of the assistant with their calls among them.
            generation: whether the start of an assistant turn is to follow.
        """
        return self._of(tools).render(
            [_readable_json(dict(each)) for each in messages], [each.as_template_input() for each in tools], generation
        )

    def written_turn(
        self, before: Sequence[Mapping[str, Any]], turn: Mapping[str, Any], tools: Sequence[ToolSpec] = ()
    ) -> list[int] | None:
        """Return the token ids of :meth:`rendered_turn`."""
        rendered = self.rendered_turn(before, turn, tools)
        return None if rendered is None else self._control.encode(rendered)

    def rendered_turn(
        self, before: Sequence[Mapping[str, Any]], turn: Mapping[str, Any], tools: Sequence[ToolSpec] = ()
    ) -> str | None:
        """Return a turn of the assistant as the template writes it, from after the start that it gives for sampling one to the
        token that ends it, control tokens under their private names; None if it begins the turn in another way.

        Args:
            before, turn: messages as chat templates take them.
        """
        start = self.rendered(before, tools)
        written = self.rendered([*before, turn], tools, generation=False)
        if not written.startswith(start):
            return None
        said, end, _ = written[len(start) :].partition(self._of(tools).end_name)
        return said + end

    def spelt_control_token(self, text: str) -> str:
        """Return the first control token that the templates write and ``text`` spells; empty if there is none.

        In a message it is ordinary text, and so has other token ids.
        """
        written = {token for source in self.templates.values() for token in self._control.spelt_in(source)}
        return next((token for token in self._control.spelt_in(text) if token in written), "")

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

    def _of(self, tools: Sequence[ToolSpec]) -> ChatTemplate:
        """Return the template of conversations with these tools."""
        found = self._for_tools if tools else self._usual
        if isinstance(found, TemplateUnsuitable):
            raise TemplateUnsuitable(str(found), found.problem)
        return found

    def _template(self, name: str, called: str) -> ChatTemplate:
        return ChatTemplate(self.tokenizer, self._control, self.templates[name], called)

    def _control_tokens(self) -> ControlTokens:
        backend = getattr(self.tokenizer, "backend_tokenizer", None)
        if backend is None:
            raise TemplateUnsuitable(
                f"the {type(self.tokenizer).__name__} of {self.tokenizer.name_or_path!r} cannot keep text from becoming special "
                "tokens; put a fast tokenizer (tokenizer.json) into the model's folder"
            )
        return ControlTokens(backend)


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


def _turns(messages: Sequence[AnyMessage]) -> list[dict[str, Any]]:
    """Convert messages to the form that a template takes, with text that a tokenizer can read."""
    return [_readable_json(each.as_template_input() if isinstance(each, Message) else dict(each)) for each in messages]


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
