"""``python -m asyncrl.bench.gpu``: the benchmark on a machine that has nothing but the learner's packages."""

import argparse
import sys
from pathlib import Path

from asyncrl.bench.gpu.run import PARTS, run
from asyncrl.bench.gpu.settings import GpuBenchSettings


def main() -> int:
    """Run the parts that were asked for, and return 1 if one failed."""
    parser = argparse.ArgumentParser("python -m asyncrl.bench.gpu", description="Measure the learner and an engine on one GPU.")
    parser.add_argument("--json", metavar="FILE", type=Path, required=True, help="where to write the result")
    parser.add_argument("--small", action="store_true", help="tiny shapes, which run on a CPU too")
    parser.add_argument("--parts", metavar="NAME", nargs="+", choices=PARTS, default=PARTS, help=f"of {', '.join(PARTS)}")
    arguments = parser.parse_args()
    settings = GpuBenchSettings.small() if arguments.small else GpuBenchSettings()
    result = run(arguments.json, say, settings, tuple(arguments.parts))
    return 1 if result.failures else 0


def say(line: str) -> None:
    """Show a line to the user."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
