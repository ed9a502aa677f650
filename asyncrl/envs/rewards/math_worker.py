"""The process that compares answers with ``math-verify``: a JSON line in, a JSON line out. It ends with its standard input.

It is run as a file, and imports nothing of asyncrl. An answer that takes it too long, or too much memory, ends it, even if
whoever asked is gone.
"""

import json
import logging
import resource
import signal
import sys

MEMORY_BYTES = 4 << 30
"""Address space of the process; sympy and what it imports take about a quarter of a GiB."""


def main() -> None:
    """Answer until the input ends."""
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = MEMORY_BYTES if hard == resource.RLIM_INFINITY else min(MEMORY_BYTES, hard)
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
    logging.disable()  # math-verify warns that it has no deadline of its own
    from math_verify import parse, verify

    sys.set_int_max_str_digits(100_000)
    print(json.dumps({"ready": True}), flush=True)  # noqa: T201 - the protocol
    for line in sys.stdin:
        asked = json.loads(line)
        signal.setitimer(signal.ITIMER_REAL, asked["seconds"])  # nobody handles the signal, so it ends the process
        gold = parse(asked["expected"], parsing_timeout=None) or parse(f"${asked['expected']}$", parsing_timeout=None)
        answer = parse(asked["answer"], parsing_timeout=None)
        equal = bool(gold and answer and verify(gold, answer, timeout_seconds=None))
        signal.setitimer(signal.ITIMER_REAL, 0)
        print(json.dumps({"known": bool(gold), "equal": equal}), flush=True)  # noqa: T201 - the protocol


if __name__ == "__main__":
    main()
