"""Names of the files, and which of them a resumed run removes."""

from asyncrl.episodes.files import evaluation_file, evaluation_files, forget_steps_after, training_file, unfinished_file


def test_steps_that_are_done_again_are_forgotten_and_nothing_else(tmp_path):
    for step in (9, 10, 11, 1_000_001):
        for number in range(2):
            training_file(tmp_path, step, number).touch()
    unfinished_file(training_file(tmp_path, 9, 2)).touch()
    others = [evaluation_file(tmp_path, 11, "generator-0"), tmp_path / "train-mine.parquet"]
    for other in others:
        other.touch()
    forget_steps_after(tmp_path, 10)
    kept = [training_file(tmp_path, step, number) for step in (9, 10) for number in range(2)]
    assert sorted(tmp_path.iterdir()) == sorted([*kept, *others])
    forget_steps_after(tmp_path / "not there", 0)


def test_the_files_of_an_evaluation_are_those_of_all_who_played(tmp_path):
    files = [evaluation_file(tmp_path, 20, player) for player in ("generator-0", "generator-0-2", "generator-1")]
    for file in [*files, evaluation_file(tmp_path, 120, "generator-0")]:
        file.touch()
    assert sorted(evaluation_files(tmp_path, 20)) == sorted(files)
