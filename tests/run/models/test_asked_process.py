"""A process that is asked about a model and ends without an answer is told as one that failed."""

import pytest

from asyncrl.run.models.asked_process import AskedProcess, NoAnswer


@pytest.mark.parametrize(
    ("module", "told"),
    [
        ("this", "it ended without an answer, and wrote .* last"),
        ("asyncrl.core.ids", ".* wrote nothing"),
        ("no_such", ".*no_such"),
    ],
)
def test_a_process_without_an_answer_is_told_by_what_it_wrote(module: str, told: str) -> None:
    with AskedProcess(module, light=True) as process, pytest.raises(NoAnswer, match=f"^{told}"):
        process.ask(list[str], b"", 60.0)
