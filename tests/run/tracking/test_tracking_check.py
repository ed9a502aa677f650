import os
from importlib.metadata import EntryPoint, EntryPoints

import msgspec
import pytest

from asyncrl.core.errors import RecipeError
from asyncrl.run.folder.run_folder import RunFolder
from asyncrl.run.recipe.compose import compose
from asyncrl.run.tracking import tracking_check
from asyncrl.run.tracking.tracking_check import LONGEST_NAME, check_tracking


def tracked_at(tmp_path, uri: str):
    recipe = compose("quickstart", [f"run_dir={tmp_path}"])
    return msgspec.structs.replace(recipe, tracking=msgspec.structs.replace(recipe.tracking, uri=uri))


@pytest.mark.parametrize(
    ("uri", "refusal"),
    [
        ("http://127.0.0.1:9", "nothing answers at http://127.0.0.1:9"),
        ("http://127.0.0.1:port", "nothing answers at .*'port'"),
        ("http://[::1", "nothing answers at .*IPv6"),
        ("http://me:secret@127.0.0.1:9", "credentials in the address of 127.0.0.1, .* MLFLOW_TRACKING_USERNAME"),
        ("https://token@127.0.0.1:9", "credentials in the address"),
        ("metrics", "'metrics' is a folder"),
        ("file:///tmp/metrics", "is a folder"),
        ("unheard://of", "MLflow cannot use 'unheard://of'"),
        ("unheard://me:secret@of/db", r"MLflow cannot use 'unheard://me:\*\*\*@of/db'"),
    ],
)
def test_an_address_at_which_nothing_can_be_tracked_is_refused(tmp_path, uri, refusal) -> None:
    with pytest.raises(RecipeError, match=refusal) as refused:
        check_tracking(tracked_at(tmp_path, uri), resumed=False)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("uri", ["", "sqlite:///HERE/mlflow.db", "databricks", "databricks://profile", "azureml://workspace"])
def test_what_mlflow_or_a_plug_in_of_it_reaches_is_taken(tmp_path, monkeypatch, uri) -> None:
    store = EntryPoint("azureml", "azureml.mlflow:store", "mlflow.tracking_store")
    monkeypatch.setattr(tracking_check, "entry_points", lambda group: EntryPoints([store]).select(group=group))
    check_tracking(tracked_at(tmp_path, uri.replace("HERE", str(tmp_path))), resumed=False)


@pytest.mark.parametrize(("key", "before"), [("run_dir", ""), ("tracking.uri", "sqlite:///")])
def test_a_path_of_the_shells_home_is_refused_and_both_remedies_are_taken(tmp_path, monkeypatch, key, before) -> None:
    """``~/runs`` would be a folder named ``~`` in the current one."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RecipeError) as refused:
        check_tracking(compose("quickstart", [f"{key}='{before}~/x'"]), resumed=False)
    whole, there = f"{before}{tmp_path}/x", f"{before}./~/x"
    assert refused.value.place == key
    assert refused.value.remedy == f"write {whole!r}, or {there!r} if you mean that name"
    for remedy in (whole, there):
        check_tracking(compose("quickstart", [f"{key}='{remedy}'"]), resumed=False)
    assert list(tmp_path.iterdir()) == []


def test_a_name_that_is_too_long_for_a_folder_is_refused_and_the_longest_makes_one(tmp_path) -> None:
    with pytest.raises(RecipeError, match=f"name: .* after 201 characters; choose a name of at most {LONGEST_NAME}"):
        check_tracking(compose("quickstart", [f"run_dir={tmp_path}", f"name={'n' * (LONGEST_NAME + 1)}"]), resumed=False)
    recipe = compose("quickstart", [f"run_dir={tmp_path}", f"name={'n' * LONGEST_NAME}"])
    check_tracking(recipe, resumed=False)
    assert RunFolder.create(recipe).recipe.is_file()


def test_folders_whose_names_are_not_utf8_are_refused(tmp_path, monkeypatch):
    latin = tmp_path / os.fsdecode(b"caf\xe9")
    latin.mkdir()
    (tmp_path / "linked").symlink_to(latin)
    with pytest.raises(RecipeError, match=r"caf\\udce9' is not UTF-8, and neither .*; rename"):
        check_tracking(compose("quickstart", [f"run_dir={tmp_path}/linked"]), resumed=False)
    monkeypatch.chdir(latin)
    for resumed in (False, True):
        with pytest.raises(RecipeError, match=r"caf\\udce9' is not UTF-8, and neither .*; rename"):
            check_tracking(compose("quickstart", ["run_dir=/tmp"]), resumed=resumed)
