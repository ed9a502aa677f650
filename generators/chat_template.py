"""One chat template of a tokenizer: renders conversations, and knows what it writes around the turns of an assistant.

To find what follows a turn, a conversation is rendered whose assistant turn is a marker; what follows the marker's end-of-turn
token is the *delta*, whatever the model wrote and however the template would render it again. Text right after the end-of-turn
token (often a newline) is part of it, so it is not lost.

A template that asks for the date always gets the same one (:data:`DATE`): else a prompt would change at midnight, in each worker
at another time, and a run that is resumed would train on other prompts than before.

What always holds: control tokens are rendered under their private names (see ``generators/control_tokens.py``). A template that
separates turns by ordinary text alone is refused.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any

from asyncrl.core.errors import AsyncRLError, RecipeError
from asyncrl.core.messages import Message, ToolCall, ToolSpec
from asyncrl.generators.control_tokens import RESERVED, ControlTokens
from asyncrl.generators.template_choice import variables_of

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_MARKER = f"{RESERVED}assistant turn{RESERVED}"
"""A marker in place of an assistant turn. No template trims or escapes it, and no message can contain it."""
_PROBE = "asyncrlprobe"
"""A placeholder for the content of a message."""

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


REMEDY = (
    "name a template (model.chat_template), or put one into the model's folder (chat_template.jinja), that ends each turn with "
    "one special token and knows the roles system, user, assistant and tool"
)


class TemplateUnsuitable(AsyncRLError):
    """The model's chat template cannot be continued token by token.

    Attributes:
        problem: what is wrong with the template, without its name and the remedy.
    """

    def __init__(self, text: str, problem: str = "") -> None:
        super().__init__(text)
        self.problem = problem or text

    def refusal(self, place: str) -> RecipeError:
        """Return what a user is told who has named the model at ``place``."""
        text, _, remedy = str(self).rpartition("; ")
        return RecipeError(place, text, remedy)


NO_ARGUMENTS: Mapping[str, Any] = {}
"""Values of a template's own variables: none."""


class ChatTemplate:
    """One chat template.

    Args:
        source: the template's text.
        name: which template it is, for errors.

    Attributes:
        end_name: private name of the token with which the template ends an assistant turn.
        end_of_turn: the token's id.
        turn_start: ids of what follows the last message's content and begins the assistant's turn.

    Raises:
        TemplateUnsuitable: no delta can be derived from the template, or its own text cannot be told apart from that of
            messages; the message says why.
    """

    def __init__(self, tokenizer: "PreTrainedTokenizerBase", control: ControlTokens, source: str, name: str) -> None:
        self._tokenizer, self._control, self.source, self._name = tokenizer, control, source, name
        self._named = control.named(source)
        special = {name: control.named(token) for name, token in tokenizer.special_tokens_map.items()}
        self._variables: Mapping[str, Any] = {**special, "strftime_now": DATE.strftime}
        self.end_name, self.end_of_turn = self._find_end_of_turn()
        self.turn_start = self._check_delta()
        self._check_tokens()

    def render(
        self,
        turns: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] = (),
        generation: bool = True,
        arguments: Mapping[str, Any] = NO_ARGUMENTS,
    ) -> str:
        """Return the text that the template writes, with control tokens under their private names.

        Args:
            generation: whether the start of an assistant turn is to follow.
            arguments: values of the template's own variables, such as ``enable_thinking``.
        """
        rendered: str = self._tokenizer.apply_chat_template(
            list(turns),
            tools=list(tools) or None,
            chat_template=self._named,
            add_generation_prompt=generation,
            tokenize=False,
            **{**arguments, **self._variables},
        )
        return rendered

    def delta(self, turns: Sequence[Mapping[str, Any]], arguments: Mapping[str, Any] = NO_ARGUMENTS) -> str:
        """Return the text after an assistant turn's end when ``turns`` follow it, up to the start of the next turn."""
        return self._after_marker(turns, arguments=arguments).removeprefix(self.end_name)

    @cached_property
    def variables(self) -> frozenset[str]:
        """The template's own variables."""
        return frozenset(variables_of(self.source))

    @cached_property
    def takes_system_later(self) -> bool:
        """Whether a system message may follow a turn. Many templates take one at the beginning alone."""
        return not self._problem_of_delta("system")

    def check_reaches(self, turns: Sequence[Mapping[str, Any]], tools: Sequence[ToolSpec]) -> None:
        """Refuse a prompt of which the template would leave out a part without a word.

        Raises:
            TemplateUnsuitable: it leaves out tools, calls or system message, or no tool's answer could follow.
        """
        if self._tool_problem and (tools or any(turn["role"] == "tool" for turn in turns)):
            raise self._unsuitable(self._tool_problem)
        if not self._shows_calls and any(turn.get("tool_calls") for turn in turns):
            raise self._unsuitable("it leaves out the calls of the assistant's earlier turns, so the model would never see them")
        if tools and not self._shows_tools:
            raise self._unsuitable("it leaves out the tools, so the model would never see them")
        if not self._shows_system and any(turn["role"] == "system" for turn in turns):
            raise self._unsuitable("it leaves out the system message, so the model would never see it")

    def check_follows(self, turns: Sequence[Mapping[str, Any]]) -> None:
        """Refuse messages that cannot follow a turn.

        Raises:
            TemplateUnsuitable: a tool's answer is among them, and the template cannot render one.
        """
        if self._tool_problem and any(turn["role"] == "tool" for turn in turns):
            raise self._unsuitable(self._tool_problem)

    def _after_marker(
        self, turns: Sequence[Mapping[str, Any]], generation: bool = True, arguments: Mapping[str, Any] = NO_ARGUMENTS
    ) -> str:
        """Return the text that is rendered after the marked assistant turn when ``turns`` follow it."""
        marked = ({"role": "user", "content": "?"}, {"role": "assistant", "content": _MARKER})
        _, marker, after = self.render((*marked, *turns), (), generation, arguments).partition(_MARKER)
        if not marker or _MARKER in after:
            raise self._unsuitable("it does not render the content of an assistant turn exactly once")
        return after

    def _find_end_of_turn(self) -> tuple[str, int]:
        """Find the token that ends an assistant turn; returns its private name and its id."""
        try:
            ending = self._after_marker((), generation=False)
        except TemplateUnsuitable:
            raise
        except Exception as error:  # a syntax error, or whatever the template's own code raises
            raise self._unsuitable(f"it does not render a turn of each of user and assistant ({first_line(error)})") from error
        name = self._control.first_name(ending)
        ids = self._control.encode(name)
        if not ids or ids[0] not in self._special_ids:
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
        return self._control.encode(self.render(({"role": "user", "content": _PROBE},)).rpartition(_PROBE)[2])

    def _problem_of_delta(self, role: str) -> str:
        """Say why a message of ``role`` cannot follow a sampled turn; empty if it can."""
        what = {"tool": "tool response", "user": "user's message", "system": "system message"}[role]
        try:
            after = self._after_marker(({"role": role, "content": _PROBE},))
        except TemplateUnsuitable as error:
            return error.problem
        except Exception as error:  # noqa: BLE001 - whatever the template's own code raises
            return f"it does not render a {what} after an assistant turn ({first_line(error)})"
        end = self.end_name
        if not after.startswith(end):
            return f"an assistant turn ends with {self._shown(end)} only where the conversation ends"
        if _PROBE not in after:
            return f"it leaves out the content of a {what}"
        question = ({"role": "user", "content": _PROBE},)
        prompt = self.render(question)
        start = prompt.removeprefix(self.render(question, generation=False))
        if not after.endswith(start) or not (start or self._control.last_name(after) != end):
            return f"a {what} is not followed by the start of an assistant turn, {self._shown(start)}"
        for rendered in (prompt, after):
            between = rendered.rpartition(_PROBE)[2]
            if not self._control.last_name(between):
                problem = f"only ordinary text, {between!r}, separates a message from the assistant's turn"
                return f"{problem}, and a message may contain the same text"
        return ""

    @property
    def _special_ids(self) -> set[int]:
        """The special tokens, also those that the tokenizer has no role for."""
        added = self._tokenizer.added_tokens_decoder
        marked = {number for number, token in added.items() if token.special}
        return {*self._tokenizer.all_special_ids, self._tokenizer.eos_token_id, *marked}

    @cached_property
    def _shows_tools(self) -> bool:
        """Whether a description of tools reaches the prompt. A template that raises says more of why when the prompt is made."""
        question, tool = [{"role": "user", "content": "?"}], ToolSpec(_PROBE, "Does it.", _PARAMETERS)
        try:
            return _PROBE in self.render(question, [tool.as_template_input()])
        except Exception:  # noqa: BLE001
            return True

    @cached_property
    def _shows_system(self) -> bool:
        """Whether a system message reaches the prompt. A template that raises says more of why when the prompt is made."""
        try:
            return _PROBE in self.render([{"role": "system", "content": _PROBE}, {"role": "user", "content": "?"}])
        except Exception:  # noqa: BLE001
            return True

    @cached_property
    def _shows_calls(self) -> bool:
        """Whether calls of earlier turns reach the prompt. A template that raises says more of why when the prompt is made."""
        call = ToolCall(_PROBE, {"word": "?"}, "call00000")
        turn, answer = Message("assistant", "", (call,)), Message("tool", "!", call_id=call.id)
        try:
            return _PROBE in self.render([each.as_template_input() for each in (Message("user", "?"), turn, answer)])
        except Exception:  # noqa: BLE001
            return True

    def _check_tokens(self) -> None:
        """Check that private names do not change what the template writes.

        For that, its source must contain each control token as one piece.
        """
        from jinja2 import TemplateError  # comes with transformers

        for turns, tools in _CONVERSATIONS:
            described = [tool.as_template_input() for tool in tools]
            try:
                usual = self._tokenizer.apply_chat_template(
                    list(turns),
                    described or None,
                    chat_template=self.source,
                    add_generation_prompt=True,
                    tokenize=False,
                    strftime_now=DATE.strftime,
                )
            except (TemplateError, TypeError):
                continue  # no system role or no tools: an environment that uses them gets an error later
            if self._control.encode(self.render(turns, described)) != self._tokenizer.encode(usual, add_special_tokens=False):
                raise self._unsuitable(
                    "it builds special tokens from pieces, as '<|' + role + '|>' does; write each as one piece"
                )

    def _shown(self, rendered: str) -> str:
        return repr(self._control.unnamed(rendered))

    def _unsuitable(self, problem: str) -> TemplateUnsuitable:
        return TemplateUnsuitable(
            f"{self._name} cannot be continued token by token: {problem}; {REMEDY}",
            problem,
        )


def first_line(error: Exception) -> str:
    """Return the first line of what an error says; its class if it says nothing."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
