"""Multi-turn chat as token ids: the sampled turns stay exactly as sampled, and only what is new is ever tokenized.

After a turn, the row continues with the *delta*: what the chat template puts between the end of an assistant turn and the start
of the next one. It is found by rendering a conversation whose assistant turn is a marker, and taking what follows the marker's
end-of-turn token. So a row is always a true prefix extension, whatever the model wrote and however the template would render it
again; and what stands right after the end-of-turn token (often a newline) is part of the delta, never lost.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from asyncrl.core.errors import AsyncRLError
from asyncrl.core.messages import Message, ToolSpec
from asyncrl.core.text import writable

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_MARKER = "asyncrlmarker"
"""Stands for an assistant turn; plain letters, which no template trims or escapes."""

_REMEMBERED = 4096
"""Renderings kept: a group renders its prompt once for all its episodes, and short tool responses come again and again."""


class TemplateUnsuitable(AsyncRLError):
    """The model's chat template cannot be continued token by token."""


class ChatFormat:
    """How one model's chat template turns messages into token ids.

    Args:
        tokenizer: a Hugging Face tokenizer with a chat template.

    Attributes:
        end_of_turn: id of the token that ends an assistant turn: where sampling stops.

    Raises:
        TemplateUnsuitable: if no delta can be derived from the template; says why.
    """

    def __init__(self, tokenizer: "PreTrainedTokenizerBase") -> None:
        self.tokenizer = tokenizer
        self._remembered: dict[bytes, list[int]] = {}
        self.end_of_turn = self._find_end_of_turn()
        self._end_text: str = tokenizer.convert_ids_to_tokens(self.end_of_turn)
        self._check_delta()

    @classmethod
    def load(cls, model_path: str) -> "ChatFormat":
        """The chat format of a Hugging Face folder."""
        from transformers import AutoTokenizer  # takes seconds, and who only starts generators needs none of it

        return cls(AutoTokenizer.from_pretrained(model_path))

    def prompt_ids(self, messages: Sequence[Message], tools: Sequence[ToolSpec] = ()) -> list[int]:
        """The first tokens of a row: messages, tools, and the start of an assistant turn."""
        messages = _writable(messages)
        return self._remember((messages, tools), lambda: self._render(messages, tools))

    def delta_ids(self, messages: Sequence[Message]) -> list[int]:
        """What follows a sampled turn that ended with :attr:`end_of_turn`: messages, and the start of the next assistant turn."""
        messages = _writable(messages)
        return self._remember((messages,), lambda: self._after_marker(messages).removeprefix(self._end_text))

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of ``token_ids``, special tokens included: a tool parser may look for them."""
        return self.tokenizer.decode(token_ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)

    def turn_text(self, token_ids: Sequence[int]) -> str:
        """The text of one sampled turn without the token that ends it."""
        ended = len(token_ids) > 0 and token_ids[-1] == self.end_of_turn
        return self.decode(token_ids[:-1] if ended else token_ids)

    def _remember(self, key: Any, render: Any) -> list[int]:
        encoded_key = msgspec.msgpack.encode(key)
        ids = self._remembered.pop(encoded_key, None)
        if ids is None:
            ids = self.tokenizer.encode(render(), add_special_tokens=False)
            if len(self._remembered) >= _REMEMBERED:
                self._remembered.pop(next(iter(self._remembered)))
        self._remembered[encoded_key] = ids  # last in is last out: a dict keeps the order of insertion
        return list(ids)

    def _render(self, messages: Sequence[Message], tools: Sequence[ToolSpec] = (), generation: bool = True) -> str:
        return self.tokenizer.apply_chat_template(
            [{"role": message.role, "content": message.content} for message in messages],
            tools=[tool.as_template_input() for tool in tools] or None,
            add_generation_prompt=generation,
            tokenize=False,
        )

    def _after_marker(self, messages: Sequence[Message], generation: bool = True) -> str:
        """What is rendered behind the marked assistant turn when ``messages`` follow it."""
        turns = [{"role": "user", "content": "?"}, {"role": "assistant", "content": _MARKER}]
        turns += [{"role": message.role, "content": message.content} for message in messages]
        rendered: str = self.tokenizer.apply_chat_template(turns, add_generation_prompt=generation, tokenize=False)
        _, marker, after = rendered.partition(_MARKER)
        if not marker or _MARKER in after:
            raise self._unsuitable("it does not render the content of an assistant turn exactly once")
        return after

    def _find_end_of_turn(self) -> int:
        if not self.tokenizer.chat_template:
            raise self._unsuitable("there is none")
        ending = self._after_marker((), generation=False)
        ids = self.tokenizer.encode(ending, add_special_tokens=False)
        if not ids or ids[0] not in {*self.tokenizer.all_special_ids, self.tokenizer.eos_token_id}:
            raise self._unsuitable(f"an assistant turn is followed by {ending!r}, which does not begin with a special token")
        return ids[0]

    def _check_delta(self) -> None:
        probe = (Message("tool", _MARKER.upper()),)
        try:
            after = self._after_marker(probe)
        except Exception as error:
            raise self._unsuitable(f"it does not render a tool response after an assistant turn ({error})") from error
        if not after.startswith(self._end_text):
            raise self._unsuitable(f"an assistant turn ends with {self._end_text!r} only where the conversation ends")
        if probe[0].content not in after:
            raise self._unsuitable("it leaves out the content of a tool response")
        start = self._render((Message("user", "?"),)).removeprefix(self._render((Message("user", "?"),), generation=False))
        if not start or not after.endswith(start):
            raise self._unsuitable(f"a tool response is not followed by the start of an assistant turn, {start!r}")

    def _unsuitable(self, problem: str) -> TemplateUnsuitable:
        return TemplateUnsuitable(
            f"the chat template of {self.tokenizer.name_or_path or 'this tokenizer'} cannot be continued token by token: "
            f"{problem}; put a template into the model's folder (chat_template.jinja) that ends each turn with one special token "
            "and knows the roles system, user, assistant and tool"
        )


def _writable(messages: Sequence[Message]) -> list[Message]:
    """What tools and environments say, as a tokenizer can read it."""
    return [Message(message.role, writable(message.content)) for message in messages]
