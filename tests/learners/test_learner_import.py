import subprocess
import sys

PROGRAM = """
import sys
import torch
before = torch.cuda.current_device
import asyncrl.learners.learner, asyncrl.learners.rank, asyncrl.learners.metrics
assert torch.cuda.current_device is before
assert not {"megatron.core", "transformers", "ray", "vllm"} & sys.modules.keys()
"""


def test_importing_the_learner_changes_nothing_and_is_light():
    subprocess.run([sys.executable, "-c", PROGRAM], check=True, timeout=240)
