"""What a worker gives the environment of each episode beside its options."""

from pathlib import Path
from typing import Any

import msgspec

from asyncrl.envs.hosting.tool_processes import ToolProcesses
from asyncrl.envs.secrets import Secrets


class Provided(msgspec.Struct, frozen=True):
    """What a worker gives one episode.

    Attributes:
        secrets: the secrets of its environment.
        shared: what the environment's ``share`` yielded.
        workspace: path of the episode's folder, which is made when it is asked for; None outside a run.
        processes: the processes for tools that run in one; None outside a run, where such a tool starts its own.
    """

    secrets: Secrets = Secrets()
    shared: Any = None
    workspace: Path | None = None
    processes: ToolProcesses | None = None
