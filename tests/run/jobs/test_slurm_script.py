"""The script for Slurm in the documentation, on nodes that stand-ins for Slurm's, Ray's and our commands play on this machine.

With Slurm itself, ``tests/job_hosts.py slurm`` plays it.
"""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "docs" / "how-to" / "scaling" / "slurm.sh"
COMMANDS = {
    "scontrol": "echo node-0; echo node-1",
    "srun": 'while [ "${1#--}" != "$1" ]; do shift; done; exec "$@"',
    "hostname": '[ "$1" = --ip-address ] && echo "$RESOLVED" || echo "$OWN "',
    "ray": 'echo "ray $*" >> "$SAID"; exec sleep 60',
    "python3": 'cat > /dev/null; exit "${JOINED:-0}"',
    "asyncrl": """
        trap 'echo TERM >> "$SAID"' TERM
        echo "asyncrl $* at $RAY_ADDRESS" >> "$SAID"
        for _ in $(seq "${ROUNDS:-0}"); do sleep 0.1; done
        exit "${ENDS:-0}"
    """,
}


class Allocation:
    """Two nodes of a job.

    Attributes:
        said: what the commands were called with.
    """

    def __init__(self, folder: Path) -> None:
        self._commands, self._said = folder / "bin", folder / "said"
        self._commands.mkdir()
        for name, does in COMMANDS.items():
            (self._commands / name).write_text(f"#!/bin/sh\n{does}\n")
            (self._commands / name).chmod(0o755)

    def start(self, *arguments: str, **variables: str) -> "subprocess.Popen[str]":
        known = {"RESOLVED": "10.0.0.7", "OWN": "10.0.0.7", "SLURM_JOB_NODELIST": "node-[0-1]", "SAID": str(self._said)}
        path = f"{self._commands}:{os.environ['PATH']}"
        return subprocess.Popen(
            ["bash", str(SCRIPT), *arguments], env={"PATH": path, **known, **variables}, stderr=subprocess.PIPE, text=True
        )

    @property
    def said(self) -> list[str]:
        return self._said.read_text().splitlines() if self._said.is_file() else []


@pytest.fixture
def allocation(tmp_path: Path) -> Allocation:
    return Allocation(tmp_path)


@pytest.mark.parametrize(
    ("resolved", "own"),
    [
        ("10.0.0.7", "10.0.0.7 172.17.0.1"),
        ("127.0.1.1", "10.0.0.7 172.17.0.1"),
        ("::1 127.0.1.1", "10.0.0.7"),
        ("fe80::1 10.0.0.7", "10.0.0.8"),
        ("", "10.0.0.7"),
    ],
)
def test_all_nodes_join_an_address_of_the_first_that_others_reach(allocation: Allocation, resolved: str, own: str):
    with allocation.start("recipe.yaml", "steps=3", RESOLVED=resolved, OWN=own) as script:
        assert script.wait(30) == 0
    assert sorted(allocation.said) == [
        "asyncrl launch recipe.yaml steps=3 at 10.0.0.7:6379",
        "ray start --block --address=10.0.0.7:6379",
        "ray start --head --block --node-ip-address=10.0.0.7 --port=6379 --include-dashboard=false",
    ]


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"RESOLVED": "127.0.1.1", "OWN": ""}, "node-0 has no address that other nodes could reach"),
        ({"SLURM_JOB_NODELIST": ""}, "submit this script with sbatch"),
        ({"JOINED": "124"}, "The nodes have not joined; see above"),
    ],
)
def test_what_keeps_a_run_from_beginning_is_said_and_nothing_is_launched(
    allocation: Allocation, variables: dict[str, str], said: str
):
    with allocation.start("recipe.yaml", **variables) as script:
        assert script.wait(30) == 1
        assert script.stderr is not None
        assert said in script.stderr.read()
    assert not any(line.startswith("asyncrl") for line in allocation.said)


@pytest.mark.parametrize("ends", [0, 1, 130])
def test_the_script_waits_for_the_run_however_often_it_is_asked_to_end(allocation: Allocation, ends: int):
    with allocation.start("recipe.yaml", ROUNDS="15", ENDS=str(ends)) as script:
        by = time.monotonic() + 30
        for asked in range(3):
            while not any(line.startswith("asyncrl") for line in allocation.said) or allocation.said.count("TERM") < asked:
                assert time.monotonic() < by, allocation.said
                time.sleep(0.02)
            script.send_signal(signal.SIGTERM)
        assert script.wait(30) == ends
    assert allocation.said.count("TERM") == 3
