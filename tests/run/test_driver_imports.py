import subprocess
import sys

import pytest

HEAVY = {"torch", "transformers", "megatron", "vllm", "mlflow", "pandas"}


@pytest.mark.parametrize("module", ["asyncrl.run.launch", "asyncrl.run.evaluation.evaluate"])
def test_the_driver_comes_up_without_what_its_actors_import(module: str) -> None:
    script = f"import sys, {module}\nprint(sorted({HEAVY!r} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=240, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
