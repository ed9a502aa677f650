"""The learner with the megatron-core of the other Pythons, unpacked beside the installed one: a few of the tests that say to what
closeness, or to what bit, layouts, experts, checkpoints and publications agree.

The wheel is for another Python, but what is used of it is Python that this one understands, too.
"""

import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from fetched_wheels import unpacked_wheel

from asyncrl.learners.megatron.versions import VERSIONS

ROOT = Path(__file__).parents[3]
LEARNER = "tests/learners"
CHOSEN = (
    f"{LEARNER}/megatron/test_layouts.py::test_every_layout_has_the_loss_and_gradients_of_one_rank[tp2-pp2-dp2]",
    f"{LEARNER}/megatron/test_layouts.py::test_every_layout_has_the_loss_and_gradients_of_one_rank[pp2-vpp2]",
    f"{LEARNER}/megatron/test_layouts.py::test_one_rank_has_the_gradients_of_plain_hugging_face",
    f"{LEARNER}/experts/test_router_replay.py::test_gradients_are_those_of_hugging_face_with_the_same_experts[glm4_moe]",
    f"{LEARNER}/megatron/test_learner_checkpoint.py::test_the_same_checkpoint_and_batches_give_the_same_bits[one-bfloat16]",
    f"{LEARNER}/megatron/test_learner_checkpoint.py::test_another_layout_goes_on_with_the_same_losses_and_weights[grid0-read0]",
    f"{LEARNER}/megatron/test_learner_checkpoint.py::test_a_checkpoint_that_another_version_wrote_is_loaded",
    "tests/weights/test_held_weights.py::test_what_two_replicas_write_together_has_the_fingerprint_of_what_one_rank_writes",
)
SECONDS = 500.0


@pytest.mark.timeout(700)
def test_the_learner_is_as_exact_with_the_other_megatron():
    (other,) = VERSIONS.keys() - {version("megatron-core")}
    folder = unpacked_wheel(f"megatron-core=={other}", python="3.12")
    paths = os.pathsep.join([str(folder), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]).strip(os.pathsep)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")} | {"PYTHONPATH": paths}
    found = (
        "from importlib.metadata import version; import megatron.core; print(version('megatron-core'), megatron.core.__file__)"
    )
    told = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", found],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert told.stdout.split() == [other, str(folder / "megatron" / "core" / "__init__.py")]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *CHOSEN]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0, done.stdout[-4000:]
    assert done.stdout.startswith("." * 9), f"one was skipped: {done.stdout[-4000:]}"
