"""What becomes of folders that not all nodes of a run see; that nodes are asked is tested in test_placed_processes.py."""

from contextlib import nullcontext
from importlib import metadata
from pathlib import Path

import pytest

from asyncrl.core.errors import RecipeError
from asyncrl.run.nodes import shared_folders
from asyncrl.run.nodes.cluster_nodes import Nodes
from asyncrl.run.nodes.placement import Node
from asyncrl.run.nodes.process_kinds import LEARNER
from asyncrl.run.nodes.shared_folders import OtherNodes, ask_other_nodes, installed, refuse_other_versions
from asyncrl.run.recipe.compose import compose

NODES = Nodes(tuple(Node(name, f"host-{name}", {}, {}) for name in "abc"), "a")
FAR_ENGINE = {LEARNER: ["a"], "generators": ["a", "b"]}
FAR_RANK = {LEARNER: ["a", "c"], "generators": ["a", "b"]}


@pytest.fixture
def model(tmp_path: Path) -> list[str]:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    return [f"model.path={tmp_path / 'model'}", f"run_dir={tmp_path / 'new' / 'runs'}"]


def seeing(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """All nodes see these folders, if what marks them is there when they look."""

    def ask(look: shared_folders._Look) -> shared_folders._Answer:
        assert all(Path(mark).is_file() for mark in look.marks.values())
        return shared_folders._Answer({}, {node: (list(names), 5) for node in look.nodes})

    monkeypatch.setattr(shared_folders, "_ask", ask)


def test_what_engines_do_not_see_is_brought(model, monkeypatch, tmp_path):
    seeing(monkeypatch)
    monkeypatch.chdir(tmp_path)
    others = ask_other_nodes(compose("quickstart", model), FAR_ENGINE, NODES, None)
    assert others.free_memory == {"b": 5}
    current, run, weights = others.folders
    assert (current.name, current.blind, current.instead) == ("current folder", ("host-b",), "Ray brings a copy of 0 MiB")
    assert (run.name, run.blind, weights.name, weights.blind) == ("run folder", ("host-b",), "model", ("host-b",))
    assert run.path == tmp_path / "new" / "runs"
    assert [path.name for path in tmp_path.iterdir()] == ["model"], "nothing is left behind"


def test_who_needs_a_shared_folder_is_refused_without(model, monkeypatch, tmp_path):
    seeing(monkeypatch, "model")
    with pytest.raises(RecipeError, match=r"run_dir.*is not seen on host-c, and learner ranks there write checkpoints"):
        ask_other_nodes(compose("quickstart", model), FAR_RANK, NODES, None)
    through_run = compose("quickstart", [*model, "weights={kind: disk}"])
    with pytest.raises(RecipeError, match=r"run_dir.*is not seen on host-b, and new weights go through it"):
        ask_other_nodes(through_run, FAR_ENGINE, NODES, None)
    elsewhere = compose("quickstart", [*model, f"weights={{kind: disk, folder: {tmp_path}}}"])
    with pytest.raises(RecipeError, match=r"weights.folder.*is not seen on host-b"):
        ask_other_nodes(elsewhere, FAR_ENGINE, NODES, None)
    seeing(monkeypatch, "folder of weights")
    assert [folder.blind for folder in ask_other_nodes(elsewhere, FAR_ENGINE, NODES, None).folders] == [
        ("host-b",),
        ("host-b",),
        (),
        ("host-b",),
    ]


def test_a_run_on_this_machine_alone_asks_nobody(model):
    assert ask_other_nodes(compose("quickstart", model), {LEARNER: ["a"], "generators": ["a"]}, NODES, None) == OtherNodes()


@pytest.mark.parametrize(
    ("there", "told"),
    [("9.9.9", "host-b has asyncrl 9.9.9, and this machine has"), (None, "host-b has no asyncrl, and this"), ("", None)],
)
def test_another_version_on_a_node_is_refused(there: str | None, told: str | None):
    assert installed() == metadata.version("asyncrl")
    hosts = {node.id: node.host for node in NODES.alive}
    with pytest.raises(RecipeError, match=told) if told else nullcontext():
        refuse_other_versions({"c": installed(), "b": there}, hosts)
