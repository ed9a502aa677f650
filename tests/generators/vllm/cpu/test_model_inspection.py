"""vLLM's look at a model's class, where it has kept none of a former one."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from fetched_wheels import unpacked_wheel
from small_engine import SIZES
from transformers import Qwen3Config

ROOT = Path(__file__).parents[4]
LOOK = """
import sys
import asyncrl
from asyncrl.core.recipe.generators import GeneratorsConfig
from asyncrl.generators.vllm.engine_arguments import EngineSettings, engine_arguments
config = GeneratorsConfig(count=1, dtype="float32", kv_cache_mb=64)
print(*engine_arguments(EngineSettings(config, sys.argv[1], 64)).create_engine_config().model_config.architectures)
"""


@pytest.mark.skipif(torch.version.cuda is not None, reason="torch is a build for GPUs here")
def test_a_model_is_looked_at_beside_a_torchvision_for_gpus(tmp_path: Path) -> None:
    folder, kept = tmp_path / "model", tmp_path / "kept"
    Qwen3Config(**SIZES, intermediate_size=96, architectures=["Qwen3ForCausalLM"]).save_pretrained(folder)
    wheel = unpacked_wheel("torchvision==0.28.0", compiled=True)
    paths = os.pathsep.join(map(str, (wheel, ROOT)))
    environment = os.environ | {"PYTHONPATH": paths, "VLLM_CACHE_ROOT": str(kept)}
    command = [sys.executable, "-c", LOOK, str(folder)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200)
    assert done.stdout.split()[-1:] == ["Qwen3ForCausalLM"], done.stderr
    assert [*kept.glob("modelinfos/*Qwen3*")], "vLLM did not have to look"
