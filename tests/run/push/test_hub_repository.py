"""The hub's own client pushes to a hub on this machine: what is refused, with which remedy, and that nothing else is replaced."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import constants
from local_hub import READS, WRITES, LocalHub, local_hub

from asyncrl.core.errors import AsyncRLError, ComponentFailed, DeadlineExceeded, RecipeError
from asyncrl.run.push import hub_repository
from asyncrl.run.push.hub_repository import HubRepository

CARD = b"---\ntags: [asyncrl]\n---\n"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalHub]:
    """A hub that the client of this process talks to, with a token that may write."""
    with local_hub() as served:
        monkeypatch.setattr(constants, "ENDPOINT", served.url)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no-token"))
        monkeypatch.setenv("HF_TOKEN", WRITES)
        yield served


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model's folder."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "README.md").write_bytes(CARD)
    (folder / "model.safetensors").write_bytes(b"weights")
    return folder


def push(folder: Path, hub_id: str = "me/calc", *, private: bool = False) -> str:
    repository = HubRepository(hub_id, private=private)
    repository.open()
    return repository.upload(folder, "version 4")


@pytest.mark.parametrize("with_xet", [False, True])
def test_what_was_pushed_before_is_replaced_in_one_commit(hub, folder, monkeypatch, with_xet):
    if with_xet:  # the client has another way to upload folders then; nothing is large, as there is no server of Xet here
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", False)
        pytest.importorskip("hf_xet")
        hub.large = ".none"
    (folder / "old.safetensors").write_bytes(b"old")
    assert push(folder) == f"{hub.url}/me/calc/commit/0123456789abcdef0123456789abcdef01234567"
    (folder / "old.safetensors").unlink()
    (folder / "model.safetensors").write_bytes(b"newer weights")
    push(folder)
    kept = {".gitattributes": b"*.safetensors filter=lfs"}
    assert hub.repositories["me/calc"] == kept | {"README.md": CARD, "model.safetensors": b"newer weights"}
    assert hub.messages == ["version 4", "version 4"]


def test_a_private_model_goes_into_a_private_repository_only(hub, folder):
    push(folder, private=True)
    assert hub.private == {"me/calc"}
    push(folder, private=True)
    hub.private.clear()
    with pytest.raises(RecipeError, match="--private: me/calc is there already, and public; make it private in its settings"):
        push(folder, private=True)


@pytest.mark.parametrize(
    ("held", "goes"), [({}, True), ({"README.md": CARD}, True), ({"model.safetensors": b"of others"}, False)]
)
def test_a_repository_that_is_there(hub, folder, held, goes):
    hub.repositories["me/calc"] = {".gitattributes": b""} | held
    if goes:
        push(folder)
        assert hub.repositories["me/calc"]["model.safetensors"] == b"weights"
        return
    with pytest.raises(
        RecipeError, match=r"me/calc is there already, with 1 file such as model.safetensors, and asyncrl did not"
    ):
        push(folder)
    assert hub.repositories["me/calc"]["model.safetensors"] == b"of others"


@pytest.mark.parametrize("hub_id", ["calc", "me/calc/more", "me/ca lc", "me/-calc", "me/calc.git", "me/" + "a" * 97, "/calc", ""])
def test_invalid_ids(hub, hub_id):
    with pytest.raises(RecipeError, match=r"^HUB_ID: .*; name it OWNER/NAME"):
        HubRepository(hub_id, private=False)
    assert not hub.asked


@pytest.mark.parametrize(
    ("token", "hub_id", "told"),
    [
        (
            None,
            "me/calc",
            "there is no token of the Hugging Face hub on this machine; log in with `hf auth login`, or set HF_TOKEN",
        ),
        ("hf_wrong", "me/calc", r"does not know the token \(.*\); log in with `hf auth login`, or set HF_TOKEN"),
        (READS, "me/calc", r"the token may not write models of 'me' \(.*\); name your own account or an organisation"),
        (WRITES, "others/calc", r"may not write models of 'others' \(.*\); name your own account or an organisation"),
    ],
)
def test_who_may_not_write_is_refused(hub, folder, monkeypatch, token, hub_id, told):
    monkeypatch.delenv("HF_TOKEN") if token is None else monkeypatch.setenv("HF_TOKEN", token)
    with pytest.raises(RecipeError, match=told):
        push(folder, hub_id)
    assert hub.repositories == {}


def test_a_token_is_not_told(hub, folder, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_thisTokenIsWrong")
    with pytest.raises(RecipeError) as caught:
        push(folder)
    assert "thisTokenIsWrong" not in str(caught.value)


def test_without_a_network(hub, folder, monkeypatch):
    with socket.socket() as nobody:  # bound, so that no other process listens there
        nobody.bind(("127.0.0.1", 0))
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{nobody.getsockname()[1]}")
        with pytest.raises(RecipeError, match=r"hub cannot be reached \(.*\); see that there is a network .* with --to FOLDER"):
            push(folder)


def test_where_the_hub_is_switched_off(hub, folder, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(RecipeError, match=r"switched off \(HF_HUB_OFFLINE\); unset HF_HUB_OFFLINE .* with --to FOLDER"):
        push(folder)
    assert not hub.asked


def test_a_hub_that_does_not_answer(hub, folder, monkeypatch):
    hub.silent = True
    monkeypatch.setattr(hub_repository, "ANSWER_S", 0.3)
    with pytest.raises(DeadlineExceeded, match=r"asyncrl push waited 0.3 s for the Hugging Face hub \(whether the model may be"):
        push(folder)


@pytest.mark.parametrize(
    ("broken", "error", "told"),
    [
        ({"fails_with": 500}, ComponentFailed, r"hub failed \(500: .*\); nothing has changed there; try again later"),
        ({"fails_with": 402}, RecipeError, r"hub refuses me/calc \(402: .*\); correct what it says"),
        ({"card_errors": ["no such licence"]}, ComponentFailed, r"did not take me/calc: .*no such licence"),
    ],
)
def test_a_hub_that_fails(hub, folder, broken, error: type[AsyncRLError], told):
    for name, value in broken.items():
        setattr(hub, name, value)
    with pytest.raises(error, match=f"(?s){told}"):
        push(folder)
    assert set(hub.repositories.get("me/calc", {})) <= {".gitattributes"}
