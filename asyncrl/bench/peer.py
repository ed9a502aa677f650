"""Other trainers that the loop is measured against, each a program in an environment of its own (``make bench-peers``).

A peer reads one description and prints one result, both JSON. Nothing of it is imported here: its libraries collide with ours.
"""

import shlex
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
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
SAMPLED_TOKENS_AGREE = 0.02
"""Relative: by so much the sampled tokens of an episode may differ between the sides, on average."""
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
        sampled_tokens: tokens that the model sampled in an episode, on average.
        tool_calls: calls of an episode, on average; every script begins with one.
        failed_tool_calls: share of the calls that failed, in [0, 1].
    """

    trajectories_per_s: float
    seconds: float
    sampled_tokens: float
    tool_calls: float
    failed_tool_calls: float


class PeerFailed(AsyncRLError):
    """A peer measured nothing, or not the work that it was given."""


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
        PeerFailed: the program failed, took longer than ``RUN_S``, or its episodes called no tool or called one in vain.
    """
    python = peer_python(environment)
    program = Path(peers.__file__).with_name(PEERS[name])
    file = folder / f"{name}.json"
    file.write_bytes(msgspec.json.encode(description))
    try:
        done = subprocess.run([python, program, file], capture_output=True, text=True, timeout=RUN_S, check=True)
    except subprocess.TimeoutExpired as error:
        raise PeerFailed(f"{name} took longer than {RUN_S:g} s for {description.steps} training steps; ask for fewer") from error
    except subprocess.CalledProcessError as error:
        last = "\n".join(error.stderr.strip().splitlines()[-_LINES_SHOWN:])
        log = _log(name, error.cmd, error.stdout, error.stderr)
        raise PeerFailed(f"{name} failed with exit code {error.returncode}: {last}\nall that it wrote is in {log}") from error
    try:
        result = msgspec.json.decode(done.stdout.splitlines()[-1], type=PeerResult)
    except (msgspec.DecodeError, IndexError) as error:
        log = _log(name, done.args, done.stdout, done.stderr)
        raise PeerFailed(f"{name} printed no result as its last line ({error}); all that it wrote is in {log}") from error
    wrong = _wrong_calls(result)
    if wrong:
        log = _log(name, done.args, done.stdout, done.stderr)
        raise PeerFailed(f"{name} did not do the work that asyncrl does: {wrong}; all that it wrote is in {log}")
    return result


def _wrong_calls(result: PeerResult) -> str:
    """What is wrong with the calls of tools that a peer made; empty if nothing is."""
    if result.failed_tool_calls > 0:
        return f"{result.failed_tool_calls:.1%} of its tool calls failed"
    if result.tool_calls < 1 - SAMPLED_TOKENS_AGREE:
        return f"its episodes called tools {result.tool_calls:.2f} times on average, and each must at least once"
    return ""


def _log(name: str, command: Sequence[str | Path], output: str, errors: str) -> Path:
    """Write what a program wrote to a file that stays; the folder with the description goes when the measurement ends."""
    with tempfile.NamedTemporaryFile("w", prefix=f"asyncrl-{name}-", suffix=".log", delete=False, encoding="utf-8") as file:
        file.write(f"$ {shlex.join(map(str, command))}\n{output}\n{errors}\n")
    return Path(file.name)


def check_sampled_tokens(name: str, peer: float, asyncrl: float, chance: float = 0.0) -> None:
    """Refuse a comparison of sides that did not do the same work.

    Args:
        name: of the peer.
        peer, asyncrl: sampled tokens of an episode, on average.
        chance: the relative difference that is put down to chance, where that is more than ``SAMPLED_TOKENS_AGREE``.

    Raises:
        PeerFailed: they differ by more.
    """
    allowed = max(SAMPLED_TOKENS_AGREE, chance)
    if not abs(peer - asyncrl) <= allowed * asyncrl:
        raise PeerFailed(
            f"an episode has {peer:.2f} sampled tokens with {name} and {asyncrl:.2f} with asyncrl; only {allowed:.1%} may lie "
            "between them, so the rates cannot be compared; look for a limit that one side reaches (turns, tokens), or for a "
            "chat template that it reads in another way"
        )
