"""Plays an episode by a command in the sandbox, from which nothing can be reached but the episode's model.

What always holds: the command has the files of the system, those that the recipe names, and the episode's folder; it is told the
address of its model as without a sandbox; nothing of it is there any more when the wait for its end is over.
"""

import asyncio
import contextlib
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from asyncrl.core.errors import RecipeError
from asyncrl.core.recipe.environment import AgentEnvironmentConfig, AgentSandboxConfig
from asyncrl.envs.agent.agent_process import ENDED_WITHIN_S, Ended
from asyncrl.envs.hosting.workspaces import default_root
from asyncrl.envs.played_by_agent import AGENT_ENDS_WITHIN_S, Endpoint
from asyncrl.envs.sandbox.limits import LONGEST_S, Limits
from asyncrl.envs.sandbox.messages import AgentsPart, BackendName, Choice, Finished, Reason
from asyncrl.envs.sandbox.run_report import how_it_ended
from asyncrl.envs.sandbox.sandbox import Sandbox, Use

KILLED = 137
"""Exit status of an agent that crossed a limit, or was told to end: that of a process which was killed, as a shell has it."""
_MOST_OUTPUT_KB = 16384
_LONGEST_LINE = 256
"""Bytes of a script's first line that Linux looks at."""
_NEVER_READABLE = ("/proc", "/sys", "/dev")


class SandboxedCommand:
    """A command that plays an episode in the sandbox."""

    def __init__(self, run: "asyncio.Task[Finished]", limits: Limits, stopped: "asyncio.Future[None]") -> None:
        self._run, self._limits, self._stopped = run, limits, stopped

    @classmethod
    def start(
        cls,
        sandbox: Sandbox,
        spec: AgentEnvironmentConfig,
        command: Sequence[str],
        words: Sequence[str],
        room: Path,
        variables: Mapping[str, str],
        endpoint: Endpoint,
    ) -> "SandboxedCommand":
        """Start the command in ``room``, with ``variables`` alone; it may write to the folder in which that is.

        Args:
            words: the command without the task's question, which may be the name of a file that the recipe does not name.
        """
        assert spec.sandbox is not None
        stopped: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        limits = _limits(spec.sandbox, spec.episode_timeout_s)
        agent = AgentsPart(urlsplit(endpoint.openai_url).port or 80, endpoint.socket, str(room.resolve()), dict(variables))
        readable = [*map(Path, spec.sandbox.readable), *named_files(words, variables)]
        run = sandbox.play(command, room.parent, limits, readable, agent, stopped)
        return cls(asyncio.create_task(run, name=f"running {command[0]} in the sandbox"), limits, stopped)

    async def ended(self) -> Ended:
        """Wait for its end, and that of all that it started.

        Raises:
            EnvironmentBroken: the sandbox failed.
        """
        finished = await self._run
        output, errors = (part.decode(errors="replace") for part in (finished.stdout, finished.stderr))
        if finished.exit_code is not None:
            return Ended(finished.exit_code, output, errors)
        told = "" if finished.reason is Reason.STOPPED else f"\nthe sandbox: {how_it_ended(finished, self._limits)}"
        return Ended(KILLED, output, f"{errors}{told}")

    def end(self) -> None:
        """Have it killed, with all that it started."""
        if not self._stopped.done():
            self._stopped.set_result(None)


def agents_sandbox(spec: AgentSandboxConfig, place: str) -> Sandbox:
    """Return the sandbox of a worker's agents. Where both work, it is bubblewrap, in which more programs do."""
    auto = (BackendName.BUBBLEWRAP, BackendName.SANDLOCK)
    otherwise = "take `sandbox` out of the recipe to have the agent do whatever you may do"
    return Sandbox(Choice(spec.backend), Use(auto, f"{place}.backend", otherwise))


def check_readable(spec: AgentSandboxConfig, place: str) -> None:
    """Refuse files and folders that are not there, or hold more than a sandbox should show.

    Raises:
        RecipeError: one of them is.
    """
    for name in spec.readable:
        path = Path(name)
        if not path.is_absolute() or not os.path.exists(path):
            problem = f"there is no file and no folder {name!r} here"
            raise RecipeError(f"{place}.readable", problem, "write the whole path of one")
        resolved = path.resolve()
        if resolved == Path("/") or any(resolved.is_relative_to(each) for each in _NEVER_READABLE):
            problem = f"{name!r} would show the agent all of this machine"
            raise RecipeError(f"{place}.readable", problem, "name the folders that the agent needs")
        if default_root().resolve().is_relative_to(resolved):
            problem = f"{name!r} would show the agent the folders of other episodes, which are in {default_root()}"
            raise RecipeError(f"{place}.readable", problem, "name the folders that the agent needs, or set TMPDIR to another one")


def _limits(spec: AgentSandboxConfig, episode_timeout_s: float) -> Limits:
    """Return the limits of a run, which the episode's deadline ends."""
    return Limits(
        wall_s=min(episode_timeout_s + 2 * AGENT_ENDS_WITHIN_S + ENDED_WITHIN_S, LONGEST_S),
        cpu_s=LONGEST_S,
        memory_mb=spec.memory_mb,
        processes=spec.processes,
        file_mb=spec.folder_mb,
        folder_mb=spec.folder_mb,
        output_kb=_MOST_OUTPUT_KB,
    )


def named_files(command: Sequence[str], variables: Mapping[str, str]) -> Iterator[Path]:
    """Yield the program, its interpreter if it is a script, and the files that the command names by their whole path.

    With a Python come its libraries.
    """
    found = shutil.which(command[0], path=variables.get("PATH"))
    interpreter = found and _interpreter(found, variables.get("PATH"))
    for program in map(Path, filter(None, (found, interpreter))):
        yield program
        if program.name.startswith("python"):
            yield from _installation(program)
            yield from _installation(program.resolve())
    yield from (Path(word) for word in command[1:] if os.path.isabs(word) and os.path.isfile(word))


def _interpreter(script: str, path: str | None) -> str | None:
    """Return the program that a script's first line names, as in those that pip makes; None if it is no script."""
    with contextlib.suppress(OSError), open(script, "rb") as file:
        words = os.fsdecode(file.readline(_LONGEST_LINE)).split()
        if words and words[0].startswith("#!"):
            words = [word for word in (words[0].removeprefix("#!"), *words[1:]) if word]
            named = words[1:2] if words and Path(words[0]).name == "env" else words[:1]
            return shutil.which(named[0], path=path) if named else None
    return None


def _installation(python: Path) -> Iterator[Path]:
    """Yield the folders of a Python: a virtual environment, or programs and libraries, around which there may be a home."""
    around = python.parent.parent
    if (around / "pyvenv.cfg").is_file():
        yield around
    elif python.parent.name == "bin":
        yield from (around / name for name in ("bin", "lib", "lib64"))
