"""Rules of the replay buffer: settings under which groups would not be trained, or not as often as the user means."""

from collections.abc import Callable, Iterator

from asyncrl.core.errors import RecipeError
from asyncrl.core.recipe.buffer import AccuracyWindowFilterConfig, PrioritisedSamplerConfig, ZeroVarianceFilterConfig
from asyncrl.core.recipe.schema import Recipe
from asyncrl.core.text import exact


def _a_group_can_reach_its_minimum(recipe: Recipe) -> Iterator[RecipeError]:
    least, size = recipe.batch.min_group, recipe.batch.group_size
    if least is not None and least > size:
        yield RecipeError(
            "batch.min_group",
            f"{least} finished episodes are more than a group of batch.group_size {size} has, so none would ever be trained",
            f"set it to at most {size}, or leave it out",
        )


def _a_window_lets_something_through(recipe: Recipe) -> Iterator[RecipeError]:
    """The windows of several filters are looked at together: a group must lie in all of them."""
    windows = {i: one for i, one in enumerate(recipe.buffer.filters) if isinstance(one, AccuracyWindowFilterConfig)}
    if not windows:
        return
    lowest, highest = max(windows, key=lambda i: windows[i].low), min(windows, key=lambda i: windows[i].high)
    low, high = windows[lowest].low, windows[highest].high
    if low > high:
        other = "high" if lowest == highest else f"buffer.filters[{highest}].high"
        yield RecipeError(
            f"buffer.filters[{lowest}].low",
            f"{exact(low)} is not at most {other} {exact(high)}, so every group would be left out",
            f"set it to at most {exact(high)}, or {other} to at least {exact(low)}",
        )


def _a_group_can_have_variance(recipe: Recipe) -> Iterator[RecipeError]:
    for index, one in enumerate(recipe.buffer.filters):
        if isinstance(one, ZeroVarianceFilterConfig) and recipe.batch.group_size == 1:
            yield RecipeError(
                f"buffer.filters[{index}]",
                "zero_variance leaves out groups of equal rewards, as that of every group of batch.group_size 1 is",
                "take it out, or set batch.group_size to at least 2",
            )


def _reuse_stays_within_the_bound(recipe: Recipe) -> Iterator[RecipeError]:
    uses, bound = recipe.buffer.max_reuse, recipe.buffer.max_staleness
    if uses > bound + 1:
        yield RecipeError(
            "buffer.max_reuse",
            f"a group is trained once per version, and after {bound + 1} versions all of it is over buffer.max_staleness "
            f"{bound}: {uses} uses are never reached",
            f"set it to at most {bound + 1}, or buffer.max_staleness to at least {uses - 1}",
        )


def _without_a_bound_to_cross_nothing_waits(recipe: Recipe) -> Iterator[RecipeError]:
    on_stale, bound = recipe.buffer.on_stale, recipe.buffer.max_staleness
    if on_stale != "mask" and bound == 0:
        yield RecipeError(
            "buffer.on_stale",
            f"{on_stale} says what happens to groups about to cross the bound, and in synchronous training "
            "(buffer.max_staleness 0) every group is trained at the version that sampled it",
            "leave it out, or set buffer.max_staleness to at least 1",
        )


def _weights_are_of_all_that_is_ready(recipe: Recipe) -> Iterator[RecipeError]:
    if recipe.buffer.on_stale == "wait" and isinstance(recipe.buffer.sampler, PrioritisedSamplerConfig):
        yield RecipeError(
            "buffer.sampler.kind",
            "prioritised draws by chance, and buffer.on_stale wait forces groups into the batch: its importance weights would "
            "not make it unbiased any more",
            "set it to fifo, or buffer.on_stale to mask",
        )


BUFFER_RULES: tuple[Callable[[Recipe], Iterator[RecipeError]], ...] = (
    _a_group_can_reach_its_minimum,
    _a_window_lets_something_through,
    _a_group_can_have_variance,
    _reuse_stays_within_the_bound,
    _without_a_bound_to_cross_nothing_waits,
    _weights_are_of_all_that_is_ready,
)
