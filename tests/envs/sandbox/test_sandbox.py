"""The sandbox's client and supervisor: what a run reports, and what happens when one of them ends."""

import asyncio
import contextlib
import os
import select
import signal
import sys
import time
from itertools import islice
from pathlib import Path

import pytest

from asyncrl.core.errors import EnvironmentBroken, RecipeError
from asyncrl.envs.sandbox.attempt import folder_is_full
from asyncrl.envs.sandbox.backends.bubblewrap import Bubblewrap
from asyncrl.envs.sandbox.backends.sandlock import Sandlock
from asyncrl.envs.sandbox.limits import Limits
from asyncrl.envs.sandbox.messages import LENGTH_BYTES, BackendName, Choice, Finished, Reason, framed
from asyncrl.envs.sandbox.processes import descendants
from asyncrl.envs.sandbox.sandbox import LONGEST_ARGUMENT, Sandbox, problem_of
from asyncrl.envs.sandbox.supervisor import Frames, choose

LIMITS = Limits(wall_s=120.0)
PYTHON = os.path.realpath(sys.executable)
ANY = Choice.AUTO if Sandlock().missing() is None or Bubblewrap().missing() is None else Choice.NONE


async def shell(sandbox: Sandbox, command: str, folder: Path, limits: Limits = LIMITS, stdin: bytes = b"") -> Finished:
    return await sandbox.run(["/bin/sh", "-c", command], folder, limits, stdin)


async def test_a_run_reports_what_was_printed_and_how_it_ended(tmp_path: Path) -> None:
    async with Sandbox(ANY) as sandbox:
        finished = await shell(sandbox, "cat; echo sorry >&2; pwd; exit 3", tmp_path, stdin=b"typed\n")
        assert (finished.stdout, finished.stderr) == (f"typed\n{tmp_path}\n".encode(), b"sorry\n")
        assert (finished.exit_code, finished.reason) == (3, Reason.EXITED)
        assert (await shell(sandbox, "kill -9 $$", tmp_path)).exit_code == 128 + signal.SIGKILL


async def test_files_stay_from_run_to_run(tmp_path: Path) -> None:
    async with Sandbox(ANY) as sandbox:
        await shell(sandbox, "mkdir folder && echo kept > folder/file && chmod +x folder/file", tmp_path)
        assert (await shell(sandbox, "test -x folder/file && cat folder/file", tmp_path)).stdout == b"kept\n"
    assert (tmp_path / "folder" / "file").read_text() == "kept\n"


async def test_many_runs_at_once_each_get_their_own_output(tmp_path: Path) -> None:
    async with Sandbox(ANY) as sandbox:
        runs = [shell(sandbox, f"echo {number}", tmp_path) for number in range(40)]
        assert [int(finished.stdout) for finished in await asyncio.gather(*runs)] == list(range(40))


async def test_a_cancelled_run_leaves_no_process(tmp_path: Path) -> None:
    async with Sandbox(ANY) as sandbox:
        os.mkfifo(tmp_path / "began")
        run = asyncio.create_task(shell(sandbox, "(sleep 1000 &); echo > began; sleep 1000", tmp_path))
        await asyncio.to_thread((tmp_path / "began").read_text)
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
        async with asyncio.timeout(60):  # a run that is cancelled waits for its end, but not for long
            while any(_program(each) == "sleep" for each in descendants(os.getpid())):  # noqa: ASYNC110 - it has no event
                await asyncio.sleep(0.01)


async def test_a_dead_supervisor_breaks_its_runs_and_is_replaced(tmp_path: Path) -> None:
    async with Sandbox(ANY) as sandbox:
        os.mkfifo(tmp_path / "began")
        run = asyncio.create_task(shell(sandbox, "echo > began; sleep 1000", tmp_path))
        await asyncio.to_thread((tmp_path / "began").read_text)
        assert sandbox._supervisor is not None
        os.kill(sandbox._supervisor._process.pid, signal.SIGKILL)
        with pytest.raises(EnvironmentBroken, match="the supervisor process ended"):
            await run
        assert (await shell(sandbox, "echo again", tmp_path)).stdout == b"again\n"


async def test_a_supervisor_that_sends_what_cannot_be_read_breaks_its_runs_and_is_replaced(tmp_path: Path) -> None:
    async with Sandbox(ANY) as sandbox:
        os.mkfifo(tmp_path / "began")
        run = asyncio.create_task(shell(sandbox, "echo > began; sleep 1000", tmp_path))
        await asyncio.to_thread((tmp_path / "began").read_text)
        first = sandbox._supervisor
        assert first is not None
        garbage = b"\xc1" * 3
        first._replies.feed_data(len(garbage).to_bytes(LENGTH_BYTES) + garbage)
        with pytest.raises(EnvironmentBroken, match="sent what is no reply"):
            await run
        assert (await shell(sandbox, "echo again", tmp_path)).stdout == b"again\n"
        assert await asyncio.wait_for(first._process.wait(), 60) == -signal.SIGKILL


async def test_a_killed_watcher_is_the_sandboxs_failure_and_takes_its_run_along(tmp_path: Path) -> None:
    async with Sandbox(ANY) as sandbox:
        os.mkfifo(tmp_path / "began")
        run = asyncio.create_task(shell(sandbox, "echo > began; sleep 1000", tmp_path))
        await asyncio.to_thread((tmp_path / "began").read_text)
        assert sandbox._supervisor is not None
        supervisor = sandbox._supervisor._process.pid
        os.kill(next(iter(descendants(supervisor))), signal.SIGKILL)
        with pytest.raises(EnvironmentBroken, match="the process that watched the run ended with -9"):
            await run
        assert list(descendants(supervisor)) == []
        assert (await shell(sandbox, "echo again", tmp_path)).stdout == b"again\n"


KEEP_BUSY = """
import os
for _ in range(24):
    if os.fork() == 0:
        break
while True:
    pass
"""


async def run_python(sandbox: Sandbox, code: str, folder: Path, limits: Limits) -> Finished:
    return await sandbox.run([PYTHON, "-I", "-S", "-c", code], folder, limits)


async def test_a_run_that_stops_all_who_watch_it_is_ended_by_who_asked_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("asyncrl.envs.sandbox.sandbox.REPORTED_WITHIN_S", 1.0)
    stop = """
import signal
with open(f"/proc/{os.getppid()}/stat") as file:
    supervisor = int(file.read().rpartition(")")[2].split()[1])
os.kill(supervisor, signal.SIGSTOP)
os.kill(os.getppid(), signal.SIGSTOP)
"""
    async with Sandbox(Choice.NONE) as sandbox:
        with pytest.raises(EnvironmentBroken, match=r"has not reported a run within 3 s; it was killed with all its runs"):
            await run_python(sandbox, "import os" + stop + KEEP_BUSY, tmp_path, Limits(wall_s=2.0))
        assert left_working_in(tmp_path) == []
        assert (await shell(sandbox, "echo again", tmp_path)).stdout == b"again\n"


async def test_a_run_that_takes_all_processors_from_its_watcher_is_ended(tmp_path: Path) -> None:
    idle = "import os; os.sched_setscheduler(os.getppid(), os.SCHED_IDLE, os.sched_param(0))\n"
    async with Sandbox(Choice.NONE) as sandbox:
        with contextlib.suppress(EnvironmentBroken):  # it depends on how much the watcher can do
            finished = await run_python(sandbox, idle + KEEP_BUSY, tmp_path, Limits(wall_s=1.0, cpu_s=600.0))
            assert finished.reason is Reason.WALL_TIME
        assert left_working_in(tmp_path) == []


@pytest.mark.parametrize("choice", [ANY, Choice.NONE])
async def test_a_command_ends_if_all_who_watch_it_are_killed_at_once(choice: Choice, tmp_path: Path) -> None:
    async with Sandbox(choice) as sandbox:
        os.mkfifo(tmp_path / "began")
        run = asyncio.create_task(shell(sandbox, "echo > began; while :; do :; done", tmp_path))
        await asyncio.to_thread((tmp_path / "began").read_text)
        assert sandbox._supervisor is not None
        supervisor = sandbox._supervisor._process.pid
        watcher, command = islice(descendants(supervisor), 2)
        ended = os.pidfd_open(command)
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for each in (supervisor, watcher):
                os.kill(each, number)
        assert select.select([ended], [], [], 60)[0], "the command goes on"
        with pytest.raises(EnvironmentBroken, match="the supervisor process ended"):
            await run


async def test_a_folder_that_is_gone_is_not_the_commands_fault(tmp_path: Path) -> None:
    async with Sandbox(ANY) as sandbox:
        with pytest.raises(EnvironmentBroken, match="the sandbox failed"):
            await shell(sandbox, "true", tmp_path / "gone")


async def test_folders_for_runs_that_have_none_go_with_the_sandbox_and_with_the_next_if_it_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "workspaces"
    monkeypatch.setattr("asyncrl.envs.hosting.workspaces.default_root", lambda: root)
    killed = root / "sandbox-1-0123abcd" / "episode-0"
    killed.mkdir(parents=True)
    root.chmod(0o700)
    async with Sandbox(ANY) as sandbox:
        async with sandbox.folder() as folder, sandbox.folder() as another:
            assert folder != another
            assert (await shell(sandbox, "echo kept > file; pwd", folder)).stdout == f"{folder}\n".encode()
            assert folder.parent.parent == root
            assert not killed.exists()
        assert not folder.exists()
    assert [path.name for path in root.iterdir()] == [".lock"]


async def test_none_is_chosen_only_by_name_and_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    async with Sandbox(Choice.NONE) as sandbox:
        assert sandbox.backend is BackendName.NONE
    assert "run with your rights" in caplog.text


async def test_a_machine_without_any_sandbox_is_refused_with_the_remedy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The supervisor finds neither program nor package: its path is empty, and so is its kernel."""
    (tmp_path / "sitecustomize.py").write_text(
        "from asyncrl.envs.sandbox.backends import sandlock, bubblewrap\n"
        "sandlock.Sandlock.missing = lambda self: 'no Landlock'\n"
        "bubblewrap.Bubblewrap.missing = lambda self: 'no program'\n"
    )
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    with pytest.raises(RecipeError, match=r"(?s)sandlock: no Landlock; bubblewrap: no program.*install sandlock.*sandbox: none"):
        await Sandbox(Choice.AUTO).__aenter__()


def test_the_first_backend_that_works_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Sandlock, "missing", lambda self: "too old")
    monkeypatch.setattr(Bubblewrap, "missing", lambda self: "too old, too")
    assert choose([BackendName.SANDLOCK, BackendName.BUBBLEWRAP]) == (None, ("sandlock: too old", "bubblewrap: too old, too"))
    assert choose([BackendName.BUBBLEWRAP]) == (None, ("bubblewrap: too old, too",))


def test_messages_are_found_in_pieces() -> None:
    finished = Finished(1, b"out", b"", 0, Reason.EXITED, 0.5)
    stream = framed(finished) * 3
    frames = Frames()
    found = [message for byte in stream for message in frames.add(bytes([byte]))]
    assert found == Frames().add(stream)
    assert len(found) == 3


def test_a_folder_is_measured_no_longer_than_the_run_may_take(tmp_path: Path) -> None:
    for number in range(300):
        (tmp_path / f"small{number}").touch()
    limits = Limits(folder_mb=1)
    assert folder_is_full(str(tmp_path), limits)
    assert not folder_is_full(str(tmp_path), limits, until=time.monotonic())


@pytest.mark.parametrize("text", ["a\0b", "\ud800", "x" * (LONGEST_ARGUMENT + 1)])
def test_what_cannot_be_an_argument_is_told(text: str) -> None:
    assert problem_of(text) is not None
    assert problem_of("print('ä')") is None


def _program(process: int) -> str:
    try:
        return Path(f"/proc/{process}/comm").read_text().strip()
    except (FileNotFoundError, ProcessLookupError):  # it has ended
        return ""


def left_working_in(folder: Path) -> list[int]:
    """The processes whose current folder is ``folder``, which are killed: they would keep the machine busy for ever."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended
            if os.readlink(process / "cwd") == str(folder):
                found.append(int(process.name))
                os.kill(found[-1], signal.SIGKILL)
    return found
