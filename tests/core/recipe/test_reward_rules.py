from typing import Any

import pytest

from asyncrl.core.errors import RecipeError
from asyncrl.core.recipe.decode import decode_recipe

RECIPE = {"name": "x", "steps": 3, "model": {"path": "tiny"}, "environment": {"name": "calculator"}}
REMOTE = {"kind": "remote", "url": "http://localhost:8000/score"}
MODEL = {"kind": "model", "path": "p"}


@pytest.mark.parametrize(
    ("sections", "place", "remedy"),
    [
        ({"reward": {**REMOTE, "url": "localhost:8000"}}, "reward.url", "http://"),
        ({"reward": {**REMOTE, "url": "ftp://host/score"}}, "reward.url", "http://"),
        ({"reward": {**REMOTE, "url": "http://host:port/"}}, "reward.url", "http://"),
        ({"reward": {**REMOTE, "url": "http://host/a b"}}, "reward.url", "%XX"),
        ({"reward": {**REMOTE, "url": " http://host/"}}, "reward.url", "http://"),
        ({"reward": {**REMOTE, "url": "http://ho\nst/"}}, "reward.url", "http://"),
        ({"reward": {**REMOTE, "url": "http://höst/"}}, "reward.url", "http://"),
        ({"reward": {**REMOTE, "url": "http://a..b/"}}, "reward.url", "such as a.b"),
        ({"reward": {**REMOTE, "url": "http://.a/"}}, "reward.url", "such as a.b"),
        ({"reward": {**REMOTE, "url": f"http://{'a' * 64}.b/"}}, "reward.url", "such as a.b"),
        ({"reward": {**REMOTE, "url": "http://user@host/"}}, "reward.url", "the part before the @"),
        ({"reward": {**REMOTE, "timeout_s": 301}}, "reward.timeout_s", "at most 300"),
        ({"reward": {**MODEL, "batch_tokens": 511}}, "reward.batch_tokens", "at least 512"),
        ({"reward": MODEL, "deadlines": {"reward": 601}}, "deadlines.reward", "at most 600"),
    ],
)
def test_a_contradiction_is_refused_with_a_remedy(sections: dict[str, Any], place: str, remedy: str):
    with pytest.raises(RecipeError) as caught:
        decode_recipe({**RECIPE, **sections})
    assert caught.value.place == place
    assert remedy in caught.value.remedy
    assert not getattr(caught.value, "__notes__", [])


@pytest.mark.parametrize(
    "url", ["http://me:secret@host/x", "http://me:sec@ret@host/x", "me:secret@host/x", "http://me:secret/ret@host/x y"]
)
def test_a_password_is_refused_and_not_repeated(url: str):
    with pytest.raises(RecipeError) as caught:
        decode_recipe({**RECIPE, "reward": {**REMOTE, "url": url}})
    assert "...@host/x" in caught.value.problem
    assert "me" not in caught.value.problem
    assert "sec" not in str(caught.value)


@pytest.mark.parametrize(
    "sections",
    [
        {"reward": {**REMOTE, "timeout_s": 300}},
        {"reward": {**REMOTE, "url": "https://[::1]:8000"}},
        {"reward": {**REMOTE, "url": f"http://{'a' * 63}.b./p%20q/@1?x=y@z"}},
        {"reward": {**MODEL, "batch_tokens": 512}},
        {"reward": MODEL, "deadlines": {"reward": 600}},
        {"deadlines": {"reward": 601}},
    ],
)
def test_the_limit_itself_is_allowed(sections: dict[str, Any]):
    decode_recipe({**RECIPE, **sections})
