"""The files of other nodes, over real folders; only Ray's way of asking a node is replaced."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from asyncrl.run.folder.run_folder import RunFolder
from asyncrl.run.nodes import remote_files
from asyncrl.run.nodes.remote_files import FarFiles, NodeFiles

WAIT_S = 60.0


class Node:
    """A node with a folder of its own in place of the run folder.

    Attributes:
        asked: set once it is asked for anything.
        answers: not set while it is so slow that it does not answer.
    """

    def __init__(self, folder: Path, run: Path) -> None:
        self._folder, self._run = folder, run
        self.asked, self.answers = asyncio.Event(), asyncio.Event()
        self.answers.set()

    def write(self, line: str) -> None:
        path = self._folder / "logs" / f"{self._folder.name}.log"
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a") as log:
            log.write(line)

    def __getattr__(self, method: str) -> "Node._Method":
        return Node._Method(self, method)

    class _Method:
        def __init__(self, node: "Node", method: str) -> None:
            self._node, self._method = node, method

        async def remote(self, *arguments: object) -> object:
            node = self._node
            node.asked.set()
            await node.answers.wait()
            return getattr(NodeFiles(), self._method)(*map(self._there, arguments))

        def _there(self, argument: object) -> object:
            """The node's own path in place of one in the run folder."""
            if isinstance(argument, list):
                return [self._there(each) for each in argument]
            node = self._node
            return node._folder / argument.relative_to(node._run) if isinstance(argument, Path) else argument


class Run:
    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._folder = RunFolder(folder / "run")
        self._folder.logs.mkdir(parents=True)
        self.slow, self.quick = (Node(folder / name, self._folder.path) for name in ("slow", "quick"))
        self.nodes = {"slow": self.slow, "quick": self.quick}
        monkeypatch.setattr(remote_files, "start_node_files", self.nodes.__getitem__)
        monkeypatch.setattr(remote_files, "LOOK_S", 0.01)
        self.files = FarFiles(self._folder, lambda: self.nodes)

    def log_of(self, name: str) -> str:
        path = self._folder.logs / f"{name}.log"
        return path.read_text() if path.exists() else ""


@pytest.fixture
async def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    return Run(tmp_path, monkeypatch)


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not holds():  # noqa: ASYNC110 - what becomes of a file is no event
            await asyncio.sleep(0.01)


async def test_a_slow_node_holds_no_other_back(run: Run) -> None:
    """Neither while it comes up nor later: the first answer may take minutes."""
    bringing = asyncio.create_task(run.files.run())
    for round_ in (1, 2):
        run.slow.answers.clear()
        run.slow.asked.clear()
        await run.slow.asked.wait()
        for line in ("one", "two"):
            before = run.log_of("quick")
            run.quick.write(f"{round_} {line}\n")
            run.slow.write(f"{round_} {line}\n")
            await until(lambda before=before: run.log_of("quick") != before)  # type: ignore[misc]
        behind = run.log_of("slow")
        assert f"{round_}" not in behind
        run.slow.answers.set()
        await until(lambda: run.log_of("slow") == run.log_of("quick"))
    assert run.files.met == {"slow", "quick"}
    bringing.cancel()
    await asyncio.wait({bringing}, timeout=WAIT_S)
    assert bringing.cancelled()


async def test_who_waits_for_what_is_new_gets_all_of_it_once(run: Run) -> None:
    """Also if something else is bringing it already."""
    run.slow.answers.clear()
    bringing = [asyncio.create_task(run.files.bring()) for _ in range(3)]
    await run.slow.asked.wait()
    run.slow.write("a line\n")
    run.slow.answers.set()
    await asyncio.wait_for(asyncio.gather(*bringing), WAIT_S)
    assert run.log_of("slow") == "a line\n"
    run.quick.write("the last line\n")
    await run.files.close(WAIT_S)
    assert run.log_of("quick") == "the last line\n"
    assert not (run.quick._folder / "logs").exists(), "nothing is left there"
