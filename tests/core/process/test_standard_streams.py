"""What is printed into a log never fails, whatever the disk does."""

import os
from pathlib import Path

from asyncrl.core.process.standard_streams import logged_stream


def test_printing_to_a_log_on_a_full_disk_raises_nothing_and_is_told_later(tmp_path: Path) -> None:
    log = os.open("/dev/full", os.O_WRONLY)
    stream = logged_stream(log)
    print("lost", file=stream)
    print("lost, too", file=stream, flush=True)
    print("x" * 100_000, file=stream)
    with (tmp_path / "log").open("wb") as sound:
        os.dup2(sound.fileno(), log)  # the disk has room again
    print("after", file=stream)
    print("and after", file=stream)
    *_, told, after, last = (tmp_path / "log").read_text().splitlines()
    assert told == "[output is missing here: No space left on device]"
    assert (after, last) == ("after", "and after")
    stream.close()
    os.close(log)
