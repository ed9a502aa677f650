from asyncrl.run.startup_progress import ComingUp


def test_what_is_waited_for_is_named_until_all_is_up():
    shown: list[tuple[float, str]] = []
    coming = ComingUp(
        ["learner", *(f"generator-{number}" for number in range(4))], lambda share, text: shown.append((share, text))
    )
    for name in ("learner", "generator-1", "generator-3", "generator-0", "generator-2"):
        coming.up(name)
    texts = [text for _, text in shown]
    assert texts[0] == "waiting for learner, generator-0, generator-1 and 2 more"
    assert texts[1] == "waiting for generator-0, generator-1, generator-2 and 1 more"
    assert texts[2] == "waiting for generator-0, generator-2, generator-3"
    assert texts[-1] == "waiting for generator-2"
    assert [round(share, 3) for share, _ in shown] == [0.0, 0.2, 0.4, 0.6, 0.8]
