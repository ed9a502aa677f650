from pathlib import Path
from uuid import uuid4

from asyncrl.core.memory_files import memory_file_system
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
