"""What the phase is called in which a run trains."""

import pytest

from asyncrl.run.measures.progress import training_phase


@pytest.mark.parametrize(
    ("begin", "said"),
    [
        (0, "Training steps 1 to 3"),
        (2, "Training steps 3 to 3"),
        (3, "No training step is left to train: 3 are done"),
        (4, "No training step is left to train: 3 are done"),
    ],
)
def test_a_resume_that_has_nothing_left_to_train_says_so(begin: int, said: str) -> None:
    assert training_phase(begin, 3) == said
