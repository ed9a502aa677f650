"""Runs peers: other trainers with which asyncrl is compared. Their programs run in a virtual environment of their own.

``make bench-peers`` sets that environment up. A peer reads one description and prints one result, both as JSON. Nothing of a peer
is imported here, because its libraries conflict with those of asyncrl.
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
"""The program of each peer, a file in the folder of :mod:`asyncrl.bench.peers`."""
ENVIRONMENT = Path(asyncrl.__file__).resolve().parents[1] / ".venv-peers"
"""The virtual environment of all peers, in the checkout."""
RUN_S = 7200.0
"""Seconds that one run of a peer may take."""
SAMPLED_TOKENS_AGREE = 0.02
"""Largest relative difference of the two sides' mean numbers of sampled tokens per episode."""
_LINES_SHOWN = 3


class PeerDescription(msgspec.Struct, frozen=True, kw_only=True):
    """The work of a peer: what it trains on, and its limits.

    Attributes:
        model: a Hugging Face folder.
        tasks: a file of JSON lines with ``prompt``.
        tools: a Python file with the tool and ``turn_reward``.
        tool: the name of the tool.
        max_tool_rounds: the most turns of an episode that may call tools; one more turn may follow.
        max_completion_tokens: the most tokens of an episode after its prompt.
        groups_per_step, group_size: groups of a training step, and episodes of a group.
        warm_up_steps, steps: training steps before the measurement, and training steps that are measured.
        learning_rate: learning rate of Adam.
        threads: number of CPU threads.
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
    """What a peer measured.

    Attributes:
        trajectories_per_s: episodes trained per second.
        seconds: duration of the measured training steps.
        sampled_tokens: mean number of tokens that the model sampled in an episode.
        tool_calls: mean number of tool calls in an episode; every script begins with one.
        failed_tool_calls: share of the tool calls that failed, in [0, 1].
    """

    trajectories_per_s: float
    seconds: float
    sampled_tokens: float
    tool_calls: float
    failed_tool_calls: float


class PeerFailed(AsyncRLError):
    """A peer failed, or did not do the work that it was given."""


def peer_python(environment: Path = ENVIRONMENT) -> Path:
    """The Python interpreter of the peers' environment.

    Raises:
        RecipeError: the environment has not been set up.
    """
    python = environment / "bin" / "python"
    if not (environment / ".installed").is_file():
        raise RecipeError("--peer", f"no peers are installed in {environment}", f"run `make bench-peers` in {environment.parent}")
    return python


def run_peer(name: str, description: PeerDescription, folder: Path, environment: Path = ENVIRONMENT) -> PeerResult:
    """Let a peer train, and return what it measured.

    Args:
        name: the peer, a key of ``PEERS``.
        folder: where the description is written.

    Raises:
        RecipeError: the peers' environment has not been set up.
        PeerFailed: the program failed or took longer than ``RUN_S``, its episodes called no tools, or a tool call failed.
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
        raise PeerFailed(f"{name} failed with exit code {error.returncode}: {last}\nall its output is in {log}") from error
    try:
        result = msgspec.json.decode(done.stdout.splitlines()[-1], type=PeerResult)
    except (msgspec.DecodeError, IndexError) as error:
        log = _log(name, done.args, done.stdout, done.stderr)
        raise PeerFailed(f"{name} printed no result as its last line ({error}); all its output is in {log}") from error
    wrong = _wrong_calls(result)
    if wrong:
        log = _log(name, done.args, done.stdout, done.stderr)
        raise PeerFailed(f"{name} did not do the work that asyncrl does: {wrong}; all its output is in {log}")
    return result


def _wrong_calls(result: PeerResult) -> str:
    """What is wrong with the tool calls of a peer; empty if nothing is."""
    if result.failed_tool_calls > 0:
        return f"{result.failed_tool_calls:.1%} of its tool calls failed"
    if result.tool_calls < 1 - SAMPLED_TOKENS_AGREE:
        return f"its episodes called tools {result.tool_calls:.2f} times on average, and each episode must call one at least once"
    return ""


def _log(name: str, command: Sequence[str | Path], output: str, errors: str) -> Path:
    """Keep the output of a program in a log file; the folder with the description is removed when the measurement ends."""
    with tempfile.NamedTemporaryFile("w", prefix=f"asyncrl-{name}-", suffix=".log", delete=False, encoding="utf-8") as file:
        file.write(f"$ {shlex.join(map(str, command))}\n{output}\n{errors}\n")
    return Path(file.name)


def check_sampled_tokens(name: str, peer: float, asyncrl: float, chance: float = 0.0) -> None:
    """Check that peer and asyncrl did the same work, so that their rates can be compared.

    Args:
        name: name of the peer.
        peer, asyncrl: mean number of sampled tokens per episode on each side.
        chance: relative difference that may be due to chance; it counts if it is larger than ``SAMPLED_TOKENS_AGREE``.

    Raises:
        PeerFailed: the numbers differ by more than is allowed.
    """
    allowed = max(SAMPLED_TOKENS_AGREE, chance)
    if not abs(peer - asyncrl) <= allowed * asyncrl:
        raise PeerFailed(
            f"an episode has {peer:.2f} sampled tokens with {name} and {asyncrl:.2f} with asyncrl, on average; these may differ "
            f"by {allowed:.1%} at most, so the rates cannot be compared; check whether one side reaches a limit (turns, "
            "tokens) or reads the chat template in another way"
        )
