"""Packages for GPUs beside a torch for CPUs, as pip leaves them where it takes them from another index."""

import importlib.metadata
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from fetched_wheels import unpacked_wheel

ROOT = Path(__file__).parents[3]


def said(program: str, *before: Path) -> str:
    """What a Python says at last that finds packages in these folders before those of this environment."""
    paths = os.pathsep.join(map(str, (*before, ROOT)))
    done = subprocess.run(
        [sys.executable, "-c", program], env=os.environ | {"PYTHONPATH": paths}, capture_output=True, text=True, timeout=200
    )
    return (done.stdout + done.stderr).strip().splitlines()[-1]


def package(folder: Path, name: str, version: str) -> None:
    (folder / name).mkdir()
    (folder / name / "__init__.py").touch()
    (folder / name / "version.py").write_text(version)


@pytest.mark.parametrize(
    ("torch_is", "version", "there"),
    [
        ("cuda: Optional[str] = None", "0.28.0+cu130", False),
        ("cuda: Optional[str] = None", "0.28.0+cpu", True),
        ("cuda: Optional[str] = '13.0'", "0.28.0+cu130", True),
    ],
)
def test_what_is_for_gpus_is_hidden_beside_a_torch_for_cpus(tmp_path: Path, torch_is: str, version: str, there: bool) -> None:
    package(tmp_path, "torch", f"from typing import Optional\n__version__ = '2.13.0'\n{torch_is}\n")
    package(tmp_path, "torchvision", f"__version__ = '{version}'\n")
    look = "import asyncrl, importlib.util; print(importlib.util.find_spec('torchvision') is not None)"
    assert said(look, tmp_path) == str(there)


@pytest.mark.skipif(torch.version.cuda is not None, reason="torch is a build for GPUs here")
def test_a_model_can_be_imported_beside_the_real_one_for_gpus() -> None:
    wanted = f"torch (=={importlib.metadata.version('torch').partition('+')[0]})"
    wheel = unpacked_wheel("torchvision==0.28.0", compiled=True)
    (about,) = wheel.glob("*.dist-info/METADATA")
    assert f"Requires-Dist: {wanted}" in about.read_text(), "fetch the release that belongs to torch's"
    model = "from transformers import Qwen3ForCausalLM; print('there')"
    assert "Could not import" in said(model, wheel), "it does no harm any more, and need not be hidden"
    assert said(f"import asyncrl; {model}", wheel) == "there"
