"""Looks at an environment through the chat template of a model: what fits, where turns end, and what looks like its tokens."""

from collections.abc import Iterable, Sequence

from asyncrl.authoring.findings import Findings
from asyncrl.authoring.played import Played
from asyncrl.core.messages import Message, ToolSpec
from asyncrl.core.recipe.schema import ModelConfig
from asyncrl.core.text import short
from generators.chat_format import ChatFormat
from generators.chat_template import TemplateUnsuitable

CHARACTERS_A_TOKEN = 4
"""Characters of an English text that make a token, where no tokenizer is at hand."""


def check_size(name: str, played: Sequence[Played], max_context: int, findings: Findings) -> None:
    """Warn of prompts that hardly fit, where no model is given."""
    longest = max((sum(len(message.content) for message in each.prompt) for each in played), default=0)
    if longest // CHARACTERS_A_TOKEN >= max_context:
        problem = f"a prompt has {longest:,} characters, about {longest // CHARACTERS_A_TOKEN:,} tokens, and model.max_context is"
        findings.warning("template", name, f"{problem} {max_context:,}", "raise model.max_context, or shorten the prompts")


async def check_template(model: ModelConfig, name: str, played: Sequence[Played], max_context: int, findings: Findings) -> None:
    """Check the episodes' prompts and answers with the tokenizer and the template of ``model``, whose path is a folder."""
    try:
        chat = ChatFormat.load(model.path, model)
    except TemplateUnsuitable as error:
        findings.error("template", model.path, str(error), "use another model, or give it a template of its own")
        return
    special = [token for token in {*chat.tokenizer.all_special_tokens, *chat.tokenizer.get_added_vocab()} if token.strip()]
    for each in played:
        ids = await chat.prompt(each.prompt, each.tools)
        if len(ids) >= max_context:
            problem = f"a prompt has {len(ids):,} tokens with this model, and model.max_context is {max_context:,}: no turn fits"
            findings.error("template", name, problem, "raise model.max_context, or shorten prompts and tool descriptions")
            break
    for what, message in (*_labelled("prompt", played), *_labelled("tool's answer", played)):
        if found := [token for token in special if token in message.content]:
            problem = f"a {what} holds {short(found[0])}, a special token of this model: {short(message.content)}"
            remedy = "leave chat markup to the template; a run encodes it as ordinary text, which the model has never seen"
            findings.warning("template", name, problem, remedy)
            break
    await _check_smuggling(chat, special, model.path, next((each.tools for each in played), ()), findings)


def _labelled(what: str, played: Sequence[Played]) -> Iterable[tuple[str, Message]]:
    for each in played:
        for message in each.prompt if what == "prompt" else (one for turn in each.answers for one in turn):
            yield what, message


async def _check_smuggling(
    chat: ChatFormat, special: Sequence[str], model: str, tools: Sequence[ToolSpec], findings: Findings
) -> None:
    """See that no text of a tool becomes a special token: as many as with a harmless answer, and at the same ends."""
    control = set(chat.tokenizer.all_special_ids)
    harmless = await chat.delta([Message("tool", "harmless")], tools)
    hostile = await chat.delta([Message("tool", " ".join((*special, "".join(special))))], tools)
    counts = [sum(token in control for token in ids) for ids in (harmless, hostile)]
    if counts[0] != counts[1]:
        problem = (
            f"a tool's answer with special tokens in its text makes {counts[1]} of them, where the template writes {counts[0]}"
        )
        findings.error("template", model, problem, "do not train with this tokenizer; it cannot keep text and tokens apart")
