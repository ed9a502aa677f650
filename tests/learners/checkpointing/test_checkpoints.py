import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.learners.checkpointing import checkpoints


def make(folder, *versions):
    for version in versions:
        path = checkpoints.path_of(folder, version)
        path.mkdir(parents=True)
        (path / "data").write_text(str(version))


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_names_sort_as_their_versions(tmp_path):
    assert checkpoints.path_of(tmp_path, 40) == tmp_path / "version-000040"


def test_a_folder_without_checkpoints_has_no_newest(tmp_path):
    assert checkpoints.newest(tmp_path / "absent") is None
    assert checkpoints.newest(tmp_path) is None


@given(versions=st.sets(st.integers(0, 2_000_000), min_size=1, max_size=8), keep=st.integers(1, 5))
def test_the_newest_are_kept(tmp_path_factory, versions, keep):
    folder = tmp_path_factory.mktemp("checkpoints")
    make(folder, *versions)
    assert checkpoints.newest(folder) == (max(versions), checkpoints.path_of(folder, max(versions)))
    checkpoints.prune(folder, keep)
    kept = sorted(versions)[-keep:]
    assert names(folder) == sorted(checkpoints.path_of(folder, version).name for version in kept)
    assert checkpoints.newest(folder) == (max(versions), checkpoints.path_of(folder, max(versions)))


def test_what_is_no_checkpoint_is_neither_found_nor_removed(tmp_path):
    make(tmp_path, 3, 12)
    partial = checkpoints.partial_of(checkpoints.path_of(tmp_path, 20))
    partial.mkdir()
    (tmp_path / "version-000099.json").write_text("totals of a version")
    (tmp_path / "version-000099").write_text("a file")
    (tmp_path / "version-copy").mkdir()
    others = {partial.name, "version-000099.json", "version-000099", "version-copy"}
    assert checkpoints.newest(tmp_path) == (12, tmp_path / "version-000012")
    checkpoints.prune(tmp_path, 1)
    assert set(names(tmp_path)) == {"version-000012", *others}


def test_a_removal_that_was_interrupted_leaves_no_half_checkpoint_and_is_completed(tmp_path, monkeypatch):
    make(tmp_path, 1, 2, 3)

    def killed(path):
        (path / "data").unlink()
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(checkpoints.shutil, "rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            checkpoints.prune(tmp_path, 1)
    assert [name for name in names(tmp_path) if not name.startswith(".")] == ["version-000003"]
    checkpoints.prune(tmp_path, 1)
    assert names(tmp_path) == ["version-000003"]


def test_left_over_partial_folders_are_removed(tmp_path):
    make(tmp_path, 1)
    partial = checkpoints.partial_of(checkpoints.path_of(tmp_path, 2))
    partial.mkdir()
    (partial / "data").write_text("half")
    checkpoints.remove_partials(tmp_path)
    assert names(tmp_path) == ["version-000001"]


def test_keeping_none_is_refused(tmp_path):
    make(tmp_path, 1)
    with pytest.raises(ValueError, match="keep is 0"):
        checkpoints.prune(tmp_path, 0)
