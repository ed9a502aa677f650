"""A process of vLLM makes no semaphore of which the name would stay if the process were killed."""

import subprocess
import sys
from pathlib import Path

LOADER = """
import multiprocessing
from pathlib import Path
from vllm.model_executor.model_loader import weight_utils
from generators.vllm import engine_load

def load():
    engine_load.register()
    list(weight_utils.safetensors_weights_iterator([], use_tqdm_on_load=True))
    print("semaphores:", Path("/proc/self/maps").read_text().count("/sem."))

if __name__ == "__main__":
    engine = multiprocessing.get_context("forkserver").Process(target=load)
    engine.start()
    engine.join()
"""


def test_loading_weights_makes_no_semaphore(tmp_path: Path) -> None:
    program = tmp_path / "loader.py"
    program.write_text(LOADER)
    done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert [line for line in done.stdout.splitlines() if line.startswith("semaphores:")] == ["semaphores: 0"], done.stderr
