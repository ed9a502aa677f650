import importlib.util
import subprocess
import sys
from contextlib import suppress

import pytest
from transformers import utils

from generators.vllm.without_sklearn import without_sklearn

PROGRAM = """
import sys
from transformers import utils
answer = utils.is_sklearn_available
import generators.vllm.cpu.engine_imports
import vllm.v1.engine.async_llm
from transformers import AutoModelForCausalLM, AutoTokenizer
AutoModelForCausalLM.from_config
assert utils.is_sklearn_available is answer
print(sorted({"sklearn", "pandas"} & sys.modules.keys()), "transformers.generation.candidate_generator" in sys.modules)
"""


def test_what_an_engine_imports_brings_neither_scikit_learn_nor_pandas() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=240, check=True)
    assert done.stdout.splitlines()[-1] == "[] True"


def test_afterwards_transformers_answers_as_before_even_after_an_error() -> None:
    before = utils.is_sklearn_available
    assert before() == (importlib.util.find_spec("sklearn") is not None)
    with suppress(ImportError), without_sklearn():
        assert not utils.is_sklearn_available()
        raise ImportError
    assert utils.is_sklearn_available is before


def test_imports_in_two_threads_leave_the_true_answer_whichever_ends_first() -> None:
    before = utils.is_sklearn_available
    first, second = without_sklearn(), without_sklearn()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    second.__exit__(None, None, None)
    assert utils.is_sklearn_available is before


def test_a_transformers_that_asks_nothing_is_imported_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(utils, "is_sklearn_available")
    with without_sklearn():
        assert not hasattr(utils, "is_sklearn_available")
    assert not hasattr(utils, "is_sklearn_available")
