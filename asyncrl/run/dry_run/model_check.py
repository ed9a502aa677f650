"""Has a process of its own try what learner and engines will make of a recipe's model (:mod:`asyncrl.run.dry_run.model_trial`).

The process comes up while the plan is made, so that this hardly takes longer. What always holds: it has ended when the context
of a :class:`ModelCheck` has.
"""

import threading
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType

import msgspec

from asyncrl.core.errors import RecipeError
from asyncrl.core.messages import ToolSpec
from asyncrl.core.recipe.rules.placement import pool_place
from asyncrl.core.recipe.schema import ModelConfig, Recipe
from asyncrl.learners.tiny.cache import found_tiny_model
from asyncrl.run.dry_run.environment_trial import Rehearsed
from asyncrl.run.dry_run.model_trial import REASONING_PARSER, TOOL_PARSER, TrialOutcome, TrialRequest, written
from asyncrl.run.dry_run.prompt_lengths import PromptSet, TooLong, judged, most_tokens
from asyncrl.run.models.asked_process import AskedProcess, NoAnswer
from asyncrl.run.models.dequantised import quantisation
from asyncrl.run.models.hub import tokenizer_folder
from asyncrl.run.models.model_facts import Fact
from asyncrl.run.models.model_shape import TINY, ModelShape
from asyncrl.run.models.template_facts import tool_parser_of
from asyncrl.run.tiny.lessons import players_of

SLOW_S = 10.0
"""Seconds after which the user reads what is being waited for."""
_PER_MESSAGE = 64
"""Most bytes that the tiny model's template adds to each message and each tool."""


class Tried(msgspec.Struct, frozen=True):
    """What came of trying a model: remarks, the tasks whose prompts are too long, and what the model's folder holds."""

    remarks: tuple[str, ...]
    too_long: tuple[TooLong, ...]
    facts: tuple[Fact, ...] = ()


class ModelCheck:
    """A context manager, within which the prompts are to be handed to :meth:`tried`.

    Args:
        shape: the shape of the recipe's model; None if it is only played, as models may be that the learner does not take.
    """

    def __init__(self, recipe: Recipe, shape: ModelShape | None) -> None:
        self._recipe = recipe
        path, tiny, model = recipe.model.path, {}, recipe.model
        vllm = find_spec("vllm") is not None
        if path == TINY:
            _check_template_of_tiny(model)
            tiny = {member: player.environment for member, player in players_of(recipe).items()}
            found = found_tiny_model(tiny, recipe.seed)
            path = "" if found is None else str(found)
        else:
            path = str(tokenizer_folder(path, "model.path"))
        self._request = TrialRequest(
            path=path,
            tiny=tiny,
            seed=recipe.seed,
            model=model,
            learner=None if shape is None else recipe.learner,
            prompts=[],
            stop=recipe.sampling.stop,
            parsers=_parsers_to_try(recipe) if vllm else {},
            pools={
                pool_place(name): pool
                for name, pool in recipe.generators.by_pool.items()
                if vllm and path and (pool.engine or recipe.learner.experts.replay)
            },
        )
        self._process: AskedProcess | None = None

    def __enter__(self) -> "ModelCheck":
        if self._request.path or self._request.asks_vllm:
            self._process = self._start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._process is not None:
            self._process.__exit__(kind, error, trace)

    def tried(self, rehearsed: Rehearsed, note: Callable[[str], None]) -> Tried:
        """Wait for what came of trying the model with the prompts of the first tasks.

        Args:
            note: shows the user a line if this takes long.

        Raises:
            RecipeError: the model, its tokenizer or its template is not suitable; vLLM refuses a parser or argument; or each
                prompt of a source leaves no room for a turn, or cannot be rendered; or one leaves none, and
                ``tasks.too_long`` is ``refuse``.
        """
        prompts, sets = rehearsed.prompts, rehearsed.sets
        if self._process is None:
            short = all(_longest(each) < self._request.model.max_context for each in sets)
            if short and not any(isinstance(each, int) for each in self._request.stop):
                return Tried((), ())  # the tiny model's tokenizer is not made yet, and there is no need to make it now
            self._process = self._start()
        request = msgspec.structs.replace(self._request, prompts=list(prompts), sets=list(sets))
        seconds = self._recipe.deadlines.start
        what = "asking vLLM about parsers and engine arguments" if request.asks_vllm else "trying tokenizer and template"
        # A second communicate would not go on with a request of which the first could write but a part.
        slow = threading.Timer(SLOW_S, note, [f"{what} takes longer than {SLOW_S:g} s"])
        slow.start()
        try:
            outcome = self._process.ask(TrialOutcome, written(request), seconds)
        except TimeoutError as error:
            problem = f"reading its tokenizer and {len(prompts)} prompts with its chat template did not end in {seconds:g} s"
            raise RecipeError("model.path", problem, "correct the template, or raise deadlines.start") from error
        except NoAnswer as error:
            problem = f"its tokenizer and chat template cannot be tried: {error}"
            refusal = RecipeError("model.path", problem, "correct the files in the model's folder")
            refusal.add_note(error.__notes__[0])
            raise refusal from error
        finally:
            slow.cancel()
        if outcome.refusal is not None:
            raise RecipeError(*outcome.refusal)
        too_long = judged(sets, outcome.found, self._recipe.tasks.too_long, self._request.model.max_context)
        return Tried(outcome.remarks, too_long, outcome.facts)

    def _start(self) -> AskedProcess:
        torch_too = self._request.asks_vllm or (self._request.path and quantisation(Path(self._request.path)))
        return AskedProcess("asyncrl.run.dry_run.model_trial", light=not torch_too)


def _check_template_of_tiny(model: ModelConfig) -> None:
    for key, value in (("chat_template", model.chat_template), ("chat_template_kwargs", model.chat_template_kwargs)):
        if value:
            problem = f"the model `{TINY}` is warmed up with a template of its own, which reads no variables"
            raise RecipeError(f"model.{key}", problem, "leave it out, or name another model")


def _parsers_to_try(recipe: Recipe) -> dict[str, str]:
    model = recipe.model
    tool = {} if _fits_the_template(recipe) else {TOOL_PARSER: model.tool_parser}
    return tool if model.reasoning_parser is None else {**tool, REASONING_PARSER: model.reasoning_parser}


def _fits_the_template(recipe: Recipe) -> bool:
    """Whether the recipe's tool parser is the one that the model's template asks for."""
    try:
        return tool_parser_of(recipe.model.path, recipe.model.chat_template)[0] == recipe.model.tool_parser
    except RecipeError:
        return False


def _longest(prompts: PromptSet) -> float:
    """Most tokens that a prompt of a set may have with the tiny model, whose tokens are of at least a byte."""
    described = [
        len(msgspec.json.encode([ToolSpec(**tool).as_template_input() for tool in tools])) + len(tools) * _PER_MESSAGE
        for tools in prompts.tools
    ]
    return max(
        most_tokens(each.messages) + described[each.tools] + (len(each.messages) + 1) * _PER_MESSAGE for each in prompts.openings
    )
