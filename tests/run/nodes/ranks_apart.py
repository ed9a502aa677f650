"""Compares two tensor-parallel ranks on two hosts with two on one, by hand and as root: they must train the same bits.

``PYTHONPATH=tests:tests/learners python tests/run/nodes/ranks_apart.py`` makes the hosts of namespaces of this machine.
"""

import argparse
import pickle
import sys
import tempfile
import time
from pathlib import Path

import msgspec
import numpy as np
from learner_samples import assemble, make_batch, make_model, make_recipe, untimed
from namespace_hosts import SHARED, hosts
from rank_side import train

from asyncrl.core.measures.metrics import combine
from asyncrl.core.parallel_layout import ParallelLayout
from asyncrl.learners.rank import RankSpec, TcpMeeting

STEPS, RANKS, SECONDS = 3, 2, 120.0
MODEL, MEETING = SHARED / "model", SHARED / "meeting"


def work(rank: int, address: str, result: Path) -> None:
    """Train as one of the ranks, which meet at an address of rank 0's host."""
    listening = None
    if rank == 0:
        meeting, socket = TcpMeeting.listen(address)
        listening = socket.detach()
        draft = MEETING.with_suffix(".draft")
        draft.write_bytes(msgspec.json.encode(meeting))
        draft.rename(MEETING)
    else:
        by = time.monotonic() + SECONDS
        while not MEETING.exists():
            assert time.monotonic() < by, "rank 0 is not there"
            time.sleep(0.1)
        meeting = msgspec.json.decode(MEETING.read_bytes(), type=TcpMeeting)
    spec = RankSpec(rank=rank, meeting=meeting, layout=ParallelLayout(tensor=RANKS), listening=listening)
    reports, shards, _ = train(spec, make_recipe(MODEL, tensor=RANKS), MODEL, *make_batch(), STEPS)
    result.write_bytes(pickle.dumps((reports, shards)))


def main() -> None:
    """Compare."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--work", nargs=3, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.work is not None:
        rank, address, result = chosen.work
        work(int(rank), address, Path(result))
        return
    seen = {}
    with tempfile.TemporaryDirectory() as folder, hosts(RANKS, Path(folder)) as made:
        make_model(Path(folder) / SHARED.name / MODEL.name)
        for name, places in {"one host": [made[0]] * RANKS, "two hosts": made}.items():
            began, results = time.monotonic(), [SHARED / f"{name}-{rank}".replace(" ", "-") for rank in range(RANKS)]
            # Else gloo would take the loopback of each host.
            known = {"PYTHONPATH": ":".join(filter(None, sys.path)), "GLOO_SOCKET_IFNAME": "eth0"}
            running = [
                place.popen([sys.executable, __file__, "--work", str(rank), made[0].address, str(results[rank])], known)
                for rank, place in enumerate(places)
            ]
            assert [process.wait(SECONDS) for process in running] == [0] * RANKS
            found = [pickle.loads((Path(folder) / SHARED.name / result.name).read_bytes()) for result in results]
            steps = zip(*(reports for reports, _ in found), strict=True)
            readings = [untimed(combine(reading for report in step for reading in report.readings)) for step in steps]
            seen[name] = readings, assemble([shards for _, shards in found])
            print(f"{name}: {time.monotonic() - began:.1f} s, {len(seen[name][1])} tensors", flush=True)
            (Path(folder) / SHARED.name / MEETING.name).unlink(missing_ok=True)
    (one_readings, one), (two_readings, two) = seen["one host"], seen["two hosts"]
    assert one.keys() == two.keys()
    for name, tensor in one.items():
        np.testing.assert_array_equal(two[name], tensor, err_msg=name)
    assert one_readings == two_readings
    print(f"after {STEPS} steps: the same bits, the same {len(one_readings[0])} readings", flush=True)


if __name__ == "__main__":
    main()
