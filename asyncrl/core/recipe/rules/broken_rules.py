"""Rules between keys: values that are each in range but make no sense together.

Each rule is one function that yields an error when it is broken. The error names the key that a user would most likely change,
and the remedies in the order in which to try them.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

from asyncrl.core.errors import RecipeError
from asyncrl.core.recipe.environment import member_place
from asyncrl.core.recipe.generators import PIPELINE
from asyncrl.core.recipe.rules.algorithm import ALGORITHM_RULES
from asyncrl.core.recipe.rules.buffer import BUFFER_RULES
from asyncrl.core.recipe.rules.environment import ENVIRONMENT_RULES
from asyncrl.core.recipe.rules.experts import EXPERT_RULES
from asyncrl.core.recipe.rules.lora import LORA_RULES
from asyncrl.core.recipe.rules.placement import PLACEMENT_RULES, pool_place
from asyncrl.core.recipe.rules.reward import REWARD_RULES
from asyncrl.core.recipe.rules.sampling import SAMPLING_RULES
from asyncrl.core.recipe.rules.teacher import TEACHER_RULES
from asyncrl.core.recipe.rules.tune import TUNE_RULES
from asyncrl.core.recipe.schema import Recipe
from asyncrl.core.recipe.tasks import FileTasksConfig
from asyncrl.core.text import exact, pluralize

LARGEST_HALF = 0.5
"""The largest share of a GPU's memory for an engine that may have to share the GPU with another one."""

Rule = Callable[[Recipe], Iterator[RecipeError]]


def broken_rules(recipe: Recipe) -> Iterator[RecipeError]:
    """Yield an error for every rule that the recipe breaks."""
    for rule in _RULES:
        yield from rule(recipe)


def _the_pace_keeps_the_bound(recipe: Recipe) -> Iterator[RecipeError]:
    depth, bound = recipe.buffer.largest_depth, recipe.buffer.max_staleness
    if depth > bound:
        yield RecipeError(
            "buffer.pipeline_depth",
            f"with {pluralize(depth, 'training step')} generated ahead, tokens are up to {pluralize(depth, 'version')} old when "
            f"they are trained, over buffer.max_staleness {bound}",
            f"set it to at most {bound}, or buffer.max_staleness to at least {depth}",
        )


def _an_episode_fits_a_micro_batch(recipe: Recipe) -> Iterator[RecipeError]:
    tokens, context = recipe.learner.micro_batch_tokens, recipe.model.max_context
    if tokens < context:
        yield RecipeError(
            "learner.micro_batch_tokens",
            f"{tokens} cannot hold an episode of model.max_context {context} tokens",
            f"set it to at least {context}",
        )


def _a_group_fits_an_engine(recipe: Recipe) -> Iterator[RecipeError]:
    size = recipe.batch.group_size
    for name, pool in recipe.generators.training.items():
        if size > (running := pool.max_running):
            key = f"{pool_place(name)}.max_running"
            smaller = f"set it to at most {running}, or {key}" if running > 1 else f"set {key}"
            yield RecipeError(
                "batch.group_size",
                f"{size} episodes of one group run on one engine, which runs at most {key} {running}",
                f"{smaller} to at least {size}",
            )


def _every_rank_gets_an_episode(recipe: Recipe) -> Iterator[RecipeError]:
    """Ranks share out the episodes of an optimizer step, also those of one group."""
    episodes, ranks = recipe.fewest_episodes, recipe.learner.data_parallel
    if 0 < episodes < ranks:
        yield RecipeError(
            "learner.data_parallel",
            f"{ranks} ranks share out the episodes of an optimizer step, and some step has {episodes}: some have no work",
            f"set it to at most {episodes}, or batch.groups_per_step to at least {recipe.fewest_groups}",
        )


def _chunks_are_of_a_pipeline(recipe: Recipe) -> Iterator[RecipeError]:
    chunks = recipe.learner.virtual_pipeline
    if chunks > 1 and recipe.learner.pipeline_parallel == 1:
        yield RecipeError(
            "learner.virtual_pipeline",
            f"{chunks} chunks per stage need a pipeline, but learner.pipeline_parallel is 1",
            "set it to 1, or learner.pipeline_parallel to at least 2",
        )


def _fp8_has_layers_that_know_it(recipe: Recipe) -> Iterator[RecipeError]:
    learner = recipe.learner
    if learner.fp8 == "none":
        return
    if learner.dtype != "bfloat16":
        yield RecipeError(
            "learner.fp8",
            f"{learner.fp8} products need parameters in half precision, but learner.dtype is {learner.dtype}",
            "set it to none, or learner.dtype to bfloat16",
        )


def _two_processes_share_a_gpu(recipe: Recipe) -> Iterator[RecipeError]:
    learner = recipe.learner
    if learner.gpu != "shared":
        return
    if learner.layout.ranks > 1:
        yield RecipeError(
            "learner.gpu",
            f"the learner has {learner.layout.ranks} ranks, and NCCL refuses two of them on one GPU, which could happen where "
            "GPUs are shared",
            "set it to own, or the learner's parallel sizes to 1",
        )
    for name, pool in recipe.generators.by_pool.items():
        place = pool_place(name)
        if pool.engine_workers > 1:
            yield RecipeError(
                "learner.gpu",
                f"an engine of {place} spans {pool.engine_workers} GPUs and cannot share them",
                f"set it to own, or each of {place}.tensor_parallel, data_parallel and engine.{PIPELINE} to 1",
            )
        if pool.gpu_memory_share > LARGEST_HALF:
            yield RecipeError(
                f"{place}.gpu_memory_share",
                f"{pool.gpu_memory_share:g} of a GPU's memory for an engine leaves too little for what shares the GPU with it",
                f"set it to at most {LARGEST_HALF:g} (0.4 is a good beginning), or learner.gpu to own",
            )


def _experts_are_shared_out_within_a_stage(recipe: Recipe) -> Iterator[RecipeError]:
    learner = recipe.learner
    stage = learner.layout.stage_ranks
    sharing = learner.expert_parallel * learner.expert_tensor_parallel
    if stage % sharing:
        yield RecipeError(
            "learner.expert_parallel",
            f"{learner.expert_parallel} x learner.expert_tensor_parallel {learner.expert_tensor_parallel} does not divide the "
            f"{stage} ranks of a pipeline stage (tensor_parallel x data_parallel x context_parallel)",
            f"let the two multiply to a divisor of {stage}, or raise learner.data_parallel",
        )


def _the_warmup_ends(recipe: Recipe) -> Iterator[RecipeError]:
    warmup = recipe.learner.warmup_steps
    if warmup > recipe.steps:
        yield RecipeError(
            "learner.warmup_steps",
            f"{warmup} is more than the run's steps {recipe.steps}, so learner.lr would never be reached",
            f"set it to at most {recipe.steps}",
        )


def _held_out_tasks_are_held_out(recipe: Recipe) -> Iterator[RecipeError]:
    match recipe.tasks:
        case FileTasksConfig(train=train, evaluation=evaluation):
            trained = {(Path(source.path).resolve(), source.split) for source in train}
            for index, source in enumerate(evaluation):
                if (Path(source.path).resolve(), source.split) in trained:
                    yield RecipeError(
                        f"tasks.evaluation[{index}].path",
                        f"{source.path!r} is trained on",
                        "name held-out tasks, which are not trained on",
                    )


def _a_tool_call_ends_before_its_episode(recipe: Recipe) -> Iterator[RecipeError]:
    for name, member in recipe.environment.by_member.items():
        place, episode = member_place(name), exact(member.episode_timeout_s)
        if (tool := member.tool_timeout_s) > member.episode_timeout_s:
            yield RecipeError(
                f"{place}.tool_timeout_s",
                f"{exact(tool)} s for one tool call is more than {place}.episode_timeout_s {episode} s for the whole episode",
                f"set it to at most {episode}",
            )


def _waiting_for_episodes_outlasts_them(recipe: Recipe) -> Iterator[RecipeError]:
    waits = (("deadlines.batch", recipe.deadlines.batch), ("deadlines.evaluation", recipe.deadlines.evaluation))
    for name, member in recipe.environment.by_member.items():
        episode, place = member.episode_timeout_s, f"{member_place(name)}.episode_timeout_s"
        for waiting, seconds in waits:
            if seconds < episode:
                yield RecipeError(
                    waiting,
                    f"{exact(seconds)} s would end the run over one slow episode, which may take {exact(episode)} s ({place})",
                    f"set it to at least {exact(episode)}, or {place} to at most {exact(seconds)}",
                )


_RULES: tuple[Rule, ...] = (
    *ALGORITHM_RULES,
    *BUFFER_RULES,
    *REWARD_RULES,
    *TEACHER_RULES,
    *ENVIRONMENT_RULES,
    *SAMPLING_RULES,
    *LORA_RULES,
    *EXPERT_RULES,
    *PLACEMENT_RULES,
    *TUNE_RULES,
    _the_pace_keeps_the_bound,
    _an_episode_fits_a_micro_batch,
    _a_group_fits_an_engine,
    _every_rank_gets_an_episode,
    _chunks_are_of_a_pipeline,
    _fp8_has_layers_that_know_it,
    _two_processes_share_a_gpu,
    _experts_are_shared_out_within_a_stage,
    _the_warmup_ends,
    _held_out_tasks_are_held_out,
    _a_tool_call_ends_before_its_episode,
    _waiting_for_episodes_outlasts_them,
)
