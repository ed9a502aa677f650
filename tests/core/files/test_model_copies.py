"""A copy of a model's folder belongs to whoever made it, wherever the model lay."""

import stat
from pathlib import Path

import pytest

from asyncrl.core.files.model_copies import copy_folder, is_licence


def test_a_copy_of_a_folder_that_nobody_may_write_can_be_written(tmp_path: Path):
    source, target = tmp_path / "store", tmp_path / "copy"
    (source / "templates").mkdir(parents=True)
    for name in ("config.json", "templates/chat.jinja", "model.safetensors"):
        (source / name).write_text(name)
        (source / name).chmod(0o444)
    (source / "linked.json").symlink_to(source / "config.json")  # as the cache of the hub has its files
    (source / "templates").chmod(0o555)
    source.chmod(0o555)
    copy_folder(source, target, ["*.safetensors"])
    copied = {str(path.relative_to(target)): path for path in target.rglob("*")}
    assert copied.keys() == {"config.json", "linked.json", "templates", "templates/chat.jinja"}
    assert all(path.stat().st_mode & stat.S_IWUSR and not path.is_symlink() for path in (target, *copied.values()))
    assert copied["templates/chat.jinja"].read_text() == "templates/chat.jinja"


@pytest.mark.parametrize(
    ("name", "is_one"),
    [
        *((name, True) for name in ("LICENSE", "LICENSE.txt", "license.md", "LICENCE", "NOTICE", "COPYING", "USE_POLICY.md")),
        *((name, False) for name in ("README.md", "config.json", "model.safetensors")),
    ],
)
def test_licences_by_their_names(name: str, is_one: bool):
    assert is_licence(name) is is_one
