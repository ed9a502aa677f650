"""The learner on a machine that has torch, transformers, megatron-core, msgspec, numpy and safetensors, and nothing else of what
asyncrl can use; without a GPU it needs numba and llvmlite too."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

BLOCKED = """
import sys

# What this project names among its dependencies and the learner can do without. Others may need what they brought along.
LACKING = {
    "vllm", "ray", "mlflow", "hydra", "omegaconf", "psutil", "pyarrow", "rich", "aiohttp", "jinja2", "pandas", "fastapi",
}

class Without:
    def __init__(self, finder):
        self.finder = finder

    def find_spec(self, name, path=None, target=None):
        return None if name.partition(".")[0] in LACKING else self.finder.find_spec(name, path, target)

    def find_distributions(self, context):
        return getattr(self.finder, "find_distributions", lambda context: [])(context)

sys.meta_path[:] = [Without(finder) for finder in sys.meta_path]
"""

LEARNER = """
import torch
compiling = torch.compile
import asyncrl.learners.learner, asyncrl.learners.megatron.rendezvous, asyncrl.learners.megatron.cpu.compat
asyncrl.learners.megatron.cpu.compat.install()
import asyncrl.learners.megatron.trainer, asyncrl.learners.megatron.state.export
from megatron.core.fusions import fused_bias_geglu, fused_bias_swiglu
assert torch.compile is compiling, "Megatron is imported without the compiler of torch, which takes seconds"
assert not {"torch._inductor.compile_fx", "sklearn"} & sys.modules.keys()
import asyncrl.bench.gpu.run, asyncrl.weights.shm.shared_tensors
missing = (LACKING | {"numba", "llvmlite"}) & {name.partition(".")[0] for name in sys.modules}
assert not missing, missing
"""

STEP = """
import asyncrl.bench.gpu.subject as subject, asyncrl.bench.gpu.settings as settings
with subject.all_folders(), subject.folder_for(settings.TINY) as folder:
    subject.make_model(folder, settings.TINY)
    batch, rows = subject.rows_of([24] * 8, settings.TINY.vocabulary)
    learner = subject.make_learner(folder, 256)
    assert subject.values_of(learner.step(batch, rows))["learner/grad_norm"] > 0
    learner.close()
"""


# As far as a host without one can show it: the kernels of a GPU compute here too, and so does the fingerprint of its tensors.
ON_A_GPU = """
LACKING |= {"numba", "llvmlite"}
import torch
from asyncrl.core.publication import Shard
from asyncrl.weights.fingerprint import _on_device
from asyncrl.learners.megatron.kernels import kernels_of
kernels = kernels_of(torch.device("cuda"), None)
ones = torch.ones(4, 32)
assert kernels.gated_silu(kernels.rms_norm(ones, torch.ones(32), 1e-6)).shape == (4, 16)
assert int(_on_device(Shard("name", (4, 32), (0, 0), ones)))
"""


@pytest.mark.parametrize("program", [LEARNER + STEP, LEARNER + ON_A_GPU], ids=["on a CPU", "on a GPU"])
def test_the_learner_does_without_what_engines_and_runs_need(program):
    done = subprocess.run(
        [sys.executable, "-c", BLOCKED + program],
        capture_output=True,
        text=True,
        timeout=250,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "CUDA_VISIBLE_DEVICES": ""},
    )
    assert done.returncode == 0, done.stderr


def test_what_makes_code_for_processors_is_in_the_extra_for_these_alone():
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    named = {"": project["dependencies"], **project["optional-dependencies"]}
    for package in ("numba", "llvmlite"):
        assert [extra for extra, lines in named.items() if package in {Requirement(line).name for line in lines}] == ["cpu"]
