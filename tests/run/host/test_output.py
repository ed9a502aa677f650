"""An actor's output goes into its log, whatever the user's code does to the standard streams."""

import subprocess
import sys
from pathlib import Path

CLOSING = r"""
import logging, os, subprocess, sys
from pathlib import Path
from asyncrl.run.host.process_output import route_output

route_output(Path(sys.argv[1]))
print("before \x1b[31m\x9b")
for leave in (exit, sys.stdout.close, sys.stderr.close):
    try:
        leave()
    except SystemExit:
        pass
mine = os.open(sys.argv[1] + ".mine", os.O_WRONLY | os.O_CREAT)
subprocess.run(["sh", "-c", "echo from a child; read line; echo $line"], stdin=None)
logging.getLogger("mine").warning("after")
os._exit(0 if mine > 2 else 1)
"""


def test_closed_standard_streams_are_nobody_elses(tmp_path: Path):
    log = tmp_path / "actor.log"
    command = [sys.executable, "-c", CLOSING, str(log)]
    done = subprocess.run(command, input=b"typed", timeout=120, check=False)
    assert done.returncode == 0
    first, second, third, *rest = log.read_text().splitlines()
    assert (first, second, third) == (r"before \x1b[31m\x9b", "from a child", "typed")
    assert [line.partition(" mine: ")[2] for line in rest] == ["after"]
    assert (tmp_path / "actor.log.mine").read_text() == ""
