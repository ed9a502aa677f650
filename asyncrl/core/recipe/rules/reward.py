"""Rules of the reward section: URLs that cannot be called, and waits that are longer than the wait they are part of."""

from collections.abc import Callable, Iterator
from urllib.parse import urlsplit

from asyncrl.core.errors import RecipeError
from asyncrl.core.recipe.reward import EnvironmentRewardConfig, ModelRewardConfig, RemoteRewardConfig
from asyncrl.core.recipe.schema import Recipe
from asyncrl.core.text import exact

LABEL_BYTES = 63
"""The most characters between two dots of a host's name (RFC 1035)."""


def _a_url_is_one_of_http(recipe: Recipe) -> Iterator[RecipeError]:
    if isinstance(recipe.reward, RemoteRewardConfig):
        yield from wrong_url(recipe.reward.url, "reward.url", "http://host:port/path")


def wrong_url(url: str, place: str, pattern: str) -> Iterator[RecipeError]:
    """Yield an error of the key ``place`` if nothing can be posted to ``url``, which should be like ``pattern``."""
    if wrong := _wrong_with(url):
        problem, remedy = wrong
        yield RecipeError(place, f"{_without_password(url)!r} {problem}", f"write it as {pattern}{remedy}")


def _wrong_with(url: str) -> tuple[str, str] | None:
    """Return the problem of a URL to which nothing can be posted, and its remedy; None if the URL is fine."""
    not_http = "is not an HTTP address", ""
    if not all("!" <= character <= "~" for character in url):
        return "has a space, a control character or one that is not ASCII", ", with %XX for such a character of the path"
    try:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.port == 0:
            return not_http
    except ValueError:  # a port that is not a number
        return not_http
    if "@" in parts.netloc:
        return "has a user or a password, which would not be sent", ", without the part before the @"
    if not all(0 < len(label) <= LABEL_BYTES for label in parts.hostname.removesuffix(".").split(".")):
        return f"has a host with a part that is empty or longer than {LABEL_BYTES} characters", ", with a host such as a.b"
    return None


def _without_password(url: str) -> str:
    before, at, after = url.rpartition("@")
    return f"...@{after}" if at else before + after


def _a_request_ends_before_its_deadline(recipe: Recipe) -> Iterator[RecipeError]:
    if isinstance(recipe.reward, RemoteRewardConfig):
        yield from slow_request(recipe, recipe.reward.timeout_s, "reward.timeout_s")


def slow_request(recipe: Recipe, timeout_s: float, place: str) -> Iterator[RecipeError]:
    """Yield an error of the key ``place`` if one request may take longer than it and its repetitions together."""
    if timeout_s > recipe.deadlines.reward:
        one, most = exact(timeout_s), exact(recipe.deadlines.reward)
        yield RecipeError(
            place,
            f"{one} s for one request is more than deadlines.reward {most} s for it and its repetitions",
            f"set it to at most {most}, or deadlines.reward to at least {one}",
        )


def _an_episode_fits_a_forward_pass(recipe: Recipe) -> Iterator[RecipeError]:
    reward, context = recipe.reward, recipe.model.max_context
    if isinstance(reward, ModelRewardConfig) and reward.batch_tokens < context:
        yield RecipeError(
            "reward.batch_tokens",
            f"{reward.batch_tokens} cannot hold an episode of model.max_context {context} tokens",
            f"set it to at least {context}",
        )


def _waiting_for_a_batch_outlasts_a_score(recipe: Recipe) -> Iterator[RecipeError]:
    score, batch = recipe.deadlines.reward, recipe.deadlines.batch
    judged = not isinstance(recipe.reward, EnvironmentRewardConfig) or recipe.algorithm.teacher is not None
    if judged and score > batch:
        yield RecipeError(
            "deadlines.reward",
            f"{exact(score)} s for a score is more than deadlines.batch {exact(batch)} s for a whole batch of them",
            f"set it to at most {exact(batch)}, or deadlines.batch to at least {exact(score)}",
        )


REWARD_RULES: tuple[Callable[[Recipe], Iterator[RecipeError]], ...] = (
    _a_url_is_one_of_http,
    _a_request_ends_before_its_deadline,
    _an_episode_fits_a_forward_pass,
    _waiting_for_a_batch_outlasts_a_score,
)
