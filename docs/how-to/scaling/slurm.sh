#!/bin/bash
# Starts Ray on every node of a Slurm allocation, and launches a run on the first:
#   sbatch --nodes=4 --gpus-per-node=8 slurm.sh recipe.yaml [key=value ...]
#SBATCH --job-name=asyncrl
#SBATCH --ntasks-per-node=1
#SBATCH --exclusive
#SBATCH --mem=0
#SBATCH --signal=B:TERM@120
set -euo pipefail
: "${1:?give a recipe, and overrides after it}"

: "${SLURM_JOB_NODELIST:?submit this script with sbatch: it starts Ray on the nodes of an allocation}"

port=${RAY_PORT:-6379}
nodes=($(scontrol show hostnames "$SLURM_JOB_NODELIST"))
# Not 127.0.1.1, which on Debian a machine's own name means to itself.
first=$(srun --nodes=1 --ntasks=1 --nodelist="${nodes[0]}" sh -c 'hostname --ip-address; hostname --all-ip-addresses' |
    tr ' ' '\n' | awk '/^[0-9.]+$/ && !/^127\./ && !found { print; found = 1 }')
: "${first:?${nodes[0]} has no address that other nodes could reach; see what \`hostname --all-ip-addresses\` says there}"

# Whoever can call Ray can run code, so that each allocation has a token of its own.
RAY_AUTH_TOKEN=$(head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \n')
export RAY_AUTH_MODE=token RAY_AUTH_TOKEN RAY_USAGE_STATS_ENABLED=0

started=()
end() {
    kill "${started[@]}" 2>/dev/null || true
    wait || true
}
trap end EXIT

srun --nodes=1 --ntasks=1 --nodelist="${nodes[0]}" --overlap \
    ray start --head --block --node-ip-address="$first" --port="$port" --include-dashboard=false &
started+=($!)
for node in "${nodes[@]:1}"; do
    srun --nodes=1 --ntasks=1 --nodelist="$node" --overlap ray start --block --address="$first:$port" &
    started+=($!)
done

export RAY_ADDRESS="$first:$port"
# Until all nodes have joined; a plan for fewer could refuse the run.
timeout 300 python3 - "${#nodes[@]}" <<'WAIT' || { echo "The nodes have not joined; see above what Ray says on them" >&2; exit 1; }
import sys
import time

import ray

wanted = int(sys.argv[1])
while True:
    try:
        ray.init(log_to_driver=False)
        break
    except ConnectionError:
        time.sleep(2)
while (there := sum(node["Alive"] for node in ray.nodes())) < wanted:
    print(f"{there} of {wanted} nodes have joined", flush=True)
    time.sleep(2)
WAIT

asyncrl launch "$@" &
run=$!
trap 'kill -TERM "$run" 2>/dev/null || true' TERM
# A wait ends with each signal, the last one with the run.
while kill -0 "$run" 2>/dev/null; do
    wait "$run" || true
done
wait "$run"
