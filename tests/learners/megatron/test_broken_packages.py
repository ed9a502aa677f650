"""The learner beside packages that are installed and cannot be used: Megatron imports them by itself, in more than 100 places."""

import textwrap
from pathlib import Path

import broken_packages_side
import pytest
from fork_server import WITH_TRANSFORMERS

TOP = """
from . import common
try:
    from . import pytorch
except ImportError:
    pass
except FileNotFoundError:
    pass
from importlib import metadata
__version__ = metadata.version("transformer_engine")
"""
"""How TransformerEngine's own top level treats its part for torch."""

LOADS = """
import importlib.util, sys
from pathlib import Path
file = Path(__file__).parents[1] / "transformer_engine_torch.so"
spec = importlib.util.spec_from_file_location("transformer_engine_torch", file)
sys.modules["transformer_engine_torch"] = module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
"""

BROKEN = {
    "the meta package alone": {
        "transformer_engine/common/__init__.py": "raise RuntimeError('Found empty `transformer-engine` meta package installed.')",
    },
    "no part for torch": {
        "transformer_engine/pytorch/__init__.py": "raise FileNotFoundError('Could not find shared object file.')",
    },
    "a part for another torch": {
        "transformer_engine/pytorch/__init__.py": LOADS,
        "transformer_engine/transformer_engine_torch.so": "no object file that this Python can load",
    },
    "parts of different versions": {
        "transformer_engine/pytorch/__init__.py": "raise AssertionError('Transformer Engine package version mismatch.')",
    },
    "other packages": {
        "flash_attn/__init__.py": "raise OSError('libcudart.so.12: cannot open shared object file')",
        "flashinfer/__init__.py": "raise RuntimeError('no CUDA driver')",
        "grouped_gemm/__init__.py": "raise ValueError('compiled for another torch')",
        "apex/__init__.py": "",
        "apex/optimizers.py": "class FusedAdam: pass\nclass FusedSGD: pass",
    },
}


def install(folder: Path, files: dict[str, str]) -> None:
    """Write a package as pip would have: TransformerEngine's with its top level and its metadata."""
    if any(name.startswith("transformer_engine") for name in files):
        information = "Metadata-Version: 2.1\nName: transformer_engine\nVersion: 2.11.0\n"
        top = {"__init__.py": TOP, "common/__init__.py": "", "pytorch/__init__.py": ""}
        files = {
            "transformer_engine-2.11.0.dist-info/METADATA": information,
            **{f"transformer_engine/{name}": text for name, text in top.items()},
            **files,
        }
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(textwrap.dedent(text))


@pytest.mark.parametrize("device", ["cpu", "gpu"])
@pytest.mark.parametrize("kind", BROKEN)
def test_the_learner_does_without_what_cannot_be_used_and_says_why(tmp_path, kind, device):
    install(tmp_path, BROKEN[kind])
    process = WITH_TRANSFORMERS.Process(target=broken_packages_side.import_learner, args=(tmp_path, device == "gpu"), daemon=True)
    process.start()
    process.join(240)
    output, errors = ((tmp_path / name).read_text() for name in ("stdout", "stderr"))
    assert process.exitcode == 0, errors
    if device == "cpu":
        assert output == "there is no GPU"
    elif kind == "other packages":
        assert output == "it is not installed"
        assert "flashinfer is installed, but cannot be imported" in errors
    else:
        assert output.startswith("it is installed, but cannot be imported: ")
