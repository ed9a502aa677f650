import fcntl
from pathlib import Path
from types import SimpleNamespace
from uuid import uuid4

import pytest

from asyncrl.core.memory_files import memory_file_system
from asyncrl.run.model_folder import ModelFolder
from asyncrl.run.model_identity import model_files
from asyncrl.run.node_files import NodeFiles


def test_what_a_run_keeps_in_memory_is_removed_and_nothing_of_another_run(tmp_path: Path) -> None:
    over, other = uuid4().hex, uuid4().hex
    kinds = ("rank0-0", "mirror-node-even-0", "disk-node-0-0", "payload")
    kept = {run: [memory_file_system() / f"asyncrl-{run}-{kind}" for kind in kinds] for run in (over, other)}
    try:
        for *files, payload in kept.values():
            payload.mkdir()
            for file in files:
                file.touch()
        NodeFiles().forget_run(over, [])
        assert not any(path.exists() for path in kept[over])
        assert all(path.exists() for path in kept[other])
    finally:
        for run in (over, other):
            NodeFiles().forget_run(run, [])


def test_a_copy_of_a_model_that_was_made_for_a_run_goes_with_it_and_other_copies_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASYNCRL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("asyncrl.run.model_folder.ask_shard", lambda answer, **_: answer)

    def model_of_another_node(name: str) -> ModelFolder:
        there, here = tmp_path / "another node" / name, tmp_path / name
        there.mkdir(parents=True)
        (there / "config.json").write_text(name)

        def read(path: Path, offset: int, limit: int) -> bytes:
            return NodeFiles().read(there / path.relative_to(here), offset, limit)

        return ModelFolder(here, model_files(there), SimpleNamespace(read=SimpleNamespace(remote=read)))

    exported, base = (model_of_another_node(name) for name in ("exported", "base"))
    with exported.loading() as copy, base.loading() as base_copy:
        assert [(each / "config.json").read_text() for each in (copy, base_copy)] == ["exported", "base"]
        with exported.loading() as same:  # another engine on the node; nobody waits
            assert same == copy
            NodeFiles().forget_run(uuid4().hex, [], exported)
        NodeFiles().forget_run(uuid4().hex, [], exported)
        assert copy.is_dir(), "somebody else loads it still"
    with (copy.parent / "lock").open() as lock:  # as somebody has it who makes the copy at this moment
        fcntl.flock(lock, fcntl.LOCK_EX)
        NodeFiles().forget_run(uuid4().hex, [], exported)
    assert copy.is_dir()
    NodeFiles().forget_run(uuid4().hex, [], exported)
    assert [path.name for path in (tmp_path / "cache").rglob("*.json")] == ["config.json"]
    assert base_copy.is_dir()
    with exported.loading() as again:
        assert (again / "config.json").read_text() == "exported"
