"""Rules of the reward section: addresses that are none, and waits that would end the run before they end themselves."""

from collections.abc import Callable, Iterator
from urllib.parse import urlsplit

from asyncrl.core.errors import RecipeError
from asyncrl.core.recipe.reward import EnvironmentReward, ModelReward, RemoteReward
from asyncrl.core.recipe.schema import Recipe


def _a_url_is_one_of_http(recipe: Recipe) -> Iterator[RecipeError]:
    if isinstance(recipe.reward, RemoteReward) and not _is_http(recipe.reward.url):
        yield RecipeError("reward.url", f"{recipe.reward.url!r} is no address of HTTP", "write it as http://host:port/path")


def _is_http(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is no number
        return False


def _a_request_ends_before_its_deadline(recipe: Recipe) -> Iterator[RecipeError]:
    reward, seconds = recipe.reward, recipe.deadlines.reward
    if isinstance(reward, RemoteReward) and reward.timeout_s > seconds:
        yield RecipeError(
            "reward.timeout_s",
            f"{reward.timeout_s:g} s for one request is more than deadlines.reward {seconds:g} s for it and its repetitions",
            f"set it to at most {seconds:g}, or deadlines.reward to at least {reward.timeout_s:g}",
        )


def _an_episode_fits_a_forward_pass(recipe: Recipe) -> Iterator[RecipeError]:
    reward, context = recipe.reward, recipe.model.max_context
    if isinstance(reward, ModelReward) and reward.batch_tokens < context:
        yield RecipeError(
            "reward.batch_tokens",
            f"{reward.batch_tokens} cannot hold an episode of model.max_context {context} tokens",
            f"set it to at least {context}",
        )


def _waiting_for_a_batch_outlasts_a_score(recipe: Recipe) -> Iterator[RecipeError]:
    score, batch = recipe.deadlines.reward, recipe.deadlines.batch
    if not isinstance(recipe.reward, EnvironmentReward) and score > batch:
        yield RecipeError(
            "deadlines.reward",
            f"{score:g} s for a score is more than deadlines.batch {batch:g} s for a whole batch of them",
            f"set it to at most {batch:g}, or deadlines.batch to at least {score:g}",
        )


REWARD_RULES: tuple[Callable[[Recipe], Iterator[RecipeError]], ...] = (
    _a_url_is_one_of_http,
    _a_request_ends_before_its_deadline,
    _an_episode_fits_a_forward_pass,
    _waiting_for_a_batch_outlasts_a_score,
)
