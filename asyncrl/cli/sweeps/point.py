"""The process of one point of a sweep: ``python -m asyncrl.cli.sweeps.point PARENT ARGUMENTS``.

It is ``asyncrl ARGUMENTS``, but it ends in order when the process PARENT, which started it, is gone.
"""

import sys

from asyncrl.cli.main import run
from asyncrl.run.host.parent import stop_with

if __name__ == "__main__":
    stop_with(int(sys.argv.pop(1)))
    run()
