"""Other trainers that the loop is measured against, each a program in an environment of its own (``make bench-peers``).

A peer reads one description and prints one result, both JSON. Nothing of it is imported here: its libraries collide with ours.
"""

import subprocess
from collections.abc import Mapping
from pathlib import Path

import msgspec

import asyncrl
from asyncrl.bench import peers
from asyncrl.core.errors import AsyncRLError, RecipeError

PEERS: Mapping[str, str] = {"trl": "trl_grpo.py"}
"""The program of each peer, in the folder of :mod:`asyncrl.bench.peers`."""
ENVIRONMENT = Path(asyncrl.__file__).resolve().parents[1] / ".venv-peers"
"""The virtual environment of all peers, in the checkout."""
RUN_S = 7200.0
"""How long one run of a peer may take."""
_LINES_SHOWN = 3


class PeerDescription(msgspec.Struct, frozen=True, kw_only=True):
    """The work of a peer: on what it trains, and with which limits.

    Attributes:
        model: a Hugging Face folder.
        tasks: a file of JSON lines with ``prompt``.
        tools: a Python file that holds the tool, and ``turn_reward``.
        tool: the name of the tool.
        max_tool_rounds: how often an episode may call tools; one turn more follows the last answer.
        max_completion_tokens: tokens of an episode after its prompt.
        groups_per_step, group_size: a training step's groups, and the episodes of each.
        warm_up_steps, steps: training steps before the measurement, and in it.
        learning_rate: of Adam.
        threads: CPU threads.
        seed: seed of task order and sampling.
    """

    model: str
    tasks: str
    tools: str
    tool: str
    max_tool_rounds: int
    max_completion_tokens: int
    groups_per_step: int
    group_size: int
    warm_up_steps: int
    steps: int
    learning_rate: float
    threads: int
    seed: int


class PeerResult(msgspec.Struct, frozen=True, kw_only=True):
    """The measurement of a peer.

    Attributes:
        trajectories_per_s: episodes trained a second.
        seconds: how long the measured steps took.
        sampled_tokens, tool_calls: of an episode, on average.
        failed_tool_calls: share of the calls that failed, in [0, 1].
    """

    trajectories_per_s: float
    seconds: float
    sampled_tokens: float
    tool_calls: float
    failed_tool_calls: float


class PeerFailed(AsyncRLError):
    """A peer did not measure anything."""


def peer_python(environment: Path = ENVIRONMENT) -> Path:
    """The interpreter of the peers.

    Raises:
        RecipeError: they are not set up.
    """
    python = environment / "bin" / "python"
    if not (environment / ".installed").is_file():
        raise RecipeError("--peer", f"there are no peers in {environment}", f"run `make bench-peers` in {environment.parent}")
    return python


def run_peer(name: str, description: PeerDescription, folder: Path, environment: Path = ENVIRONMENT) -> PeerResult:
    """Have a peer train, and return what it measured.

    Args:
        name: which peer, a key of ``PEERS``.
        folder: where the description is written.

    Raises:
        RecipeError: the peers are not set up.
        PeerFailed: the program failed, or took longer than ``RUN_S``.
    """
    python = peer_python(environment)
    program = Path(peers.__file__).with_name(PEERS[name])
    file = folder / f"{name}.json"
    file.write_bytes(msgspec.json.encode(description))
    try:
        done = subprocess.run([python, program, file], capture_output=True, text=True, timeout=RUN_S, check=True)
        return msgspec.json.decode(done.stdout.splitlines()[-1], type=PeerResult)
    except subprocess.TimeoutExpired as error:
        raise PeerFailed(f"{name} took longer than {RUN_S:g} s for {description.steps} training steps; ask for fewer") from error
    except subprocess.CalledProcessError as error:
        last = "\n".join(error.stderr.strip().splitlines()[-_LINES_SHOWN:])
        raise PeerFailed(f"{name} failed with exit code {error.returncode}: {last}") from error
    except (msgspec.DecodeError, IndexError) as error:
        raise PeerFailed(f"{name} printed no result: {error}") from error
