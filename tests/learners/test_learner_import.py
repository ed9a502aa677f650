import subprocess
import sys

PROGRAM = """
import sys
import torch
before = torch.cuda.current_device
import learners.learner, learners.rank, learners.metrics
assert torch.cuda.current_device is before
assert not {"megatron.core", "transformers", "ray", "vllm"} & sys.modules.keys()
"""


def test_importing_the_learner_changes_nothing_and_is_light():
    subprocess.run([sys.executable, "-c", PROGRAM], check=True, timeout=240)


MEGATRON = """
import sys
import torch
before = torch.compile
from learners.megatron.cpu import compat
compat.install()
import learners.megatron.trainer
from megatron.core.fusions import fused_bias_geglu, fused_bias_swiglu
print(torch.compile is before, "torch._inductor.compile_fx" in sys.modules, "sklearn" in sys.modules)
"""


def test_on_a_cpu_megatron_is_imported_without_the_compiler_of_torch():
    done = subprocess.run([sys.executable, "-c", MEGATRON], capture_output=True, text=True, timeout=240, check=True)
    assert done.stdout.split() == ["True", "False", "False"]
