#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Ranks that srun starts: a cluster of one node on this machine, for the time of this script. Two ranks give the answer of one, a
# wrong number of ranks is refused, when a rank is killed the step ends, and examples/launchers/slurm.sh serves. Needs root and
# Debian's slurmctld and slurmd.
#
#   WARPROW_BIN=build/cpu-release/warprow tests/e2e/slurm_ranks.sh
#
# Exits 77 if Slurm is not installed.
set -euo pipefail

for program in slurmctld slurmd srun; do
  if ! command -v "$program" >/dev/null || [[ $EUID -ne 0 ]]; then
    echo "skipped: needs root and $program; apt-get install slurmctld slurmd slurm-client"
    exit 77
  fi
done
warprow=$(realpath "${WARPROW_BIN:-build/cpu-release/warprow}")
model=${WARPROW_E2E_MODEL:-smollm2}
example=$(dirname "$(realpath "$0")")/../../examples/launchers/slurm.sh
unset WARPROW_BIN WARPROW_E2E_MODEL # no settings
state=$(mktemp -d)
daemons=()
finish() {
  kill "${daemons[@]}" 2>/dev/null || true
  wait || true
  rm -rf "$state"
}
trap finish EXIT

mkdir "$state/spool" "$state/ctld"
cat >"$state/slurm.conf" <<END
ClusterName=test
SlurmctldHost=$(hostname -s)
SlurmctldPort=26817
SlurmdPort=26818
SlurmUser=root
AuthType=auth/none
CredType=cred/none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
SlurmctldPidFile=$state/slurmctld.pid
SlurmdPidFile=$state/slurmd.pid
SlurmdSpoolDir=$state/spool
StateSaveLocation=$state/ctld
NodeName=$(hostname -s) CPUs=$(nproc) State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=FORCE:4
END
export SLURM_CONF=$state/slurm.conf
slurmctld -D >"$state/slurmctld.log" 2>&1 &
daemons+=($!)
slurmd -D >"$state/slurmd.log" 2>&1 &
daemons+=($!)
for _ in {1..100}; do
  if sinfo --noheader --format=%t 2>/dev/null | grep -q idle; then
    break
  fi
  sleep 0.2
done
sinfo --noheader --format=%t | grep -q idle || {
  cat "$state"/*.log
  exit 1
}

# warprow generate FLAGS: the token ids
flags=(generate "$model" -p "The capital of France is" --max-tokens 24 --temperature 0 --dtype float32 --threads 1 --output json)
launched=(--distributed-executor-backend external_launcher --join-timeout 30)
ids() { python3 -c 'import json, sys; print(json.load(sys.stdin)["choices"][0]["token_ids"])'; }
run() { srun --ntasks="$1" --cpus-per-task=1 --overcommit --kill-on-bad-exit=1 "$warprow" "${@:2}"; }

# ranks [RANK]: the processes of this cluster that run ranks
ranks() {
  local pid
  for pid in $(pgrep "wr-rank-${1:-}"); do
    if grep --quiet --null-data "^SLURM_CONF=$SLURM_CONF$" "/proc/$pid/environ" 2>/dev/null; then
      echo "$pid"
    fi
  done
}

alone=$("$warprow" "${flags[@]}" | ids)
for split in -tp -pp; do
  size=$([[ $split == -tp ]] && echo 3 || echo 2)
  got=$(run "$size" "${flags[@]}" "$split" "$size" "${launched[@]}" | ids)
  [[ $got == "$alone" ]] || {
    echo "FAILED: $size ranks of srun ($split) gave $got, one rank $alone"
    exit 1
  }
  echo "ok: $size ranks of srun ($split) give the answer of one"
done

if run 2 "${flags[@]}" -pp 3 "${launched[@]}" >"$state/out" 2>&1; then
  echo "FAILED: a wrong number of ranks was not refused"
  exit 1
fi
grep -q 'SLURM_NTASKS is 2, but' "$state/out" || {
  cat "$state/out"
  exit 1
}
echo "ok: a wrong number of ranks is refused"

run 2 bench throughput "$model" --num-prompts 500 -pp 2 --threads 1 "${launched[@]}" >"$state/out" 2>&1 &
step=$!
for _ in {1..100}; do
  victim=$(ranks 1)
  [[ -n $victim ]] && break
  sleep 0.1
done
sleep 4
kill -9 "$victim"
begin=$SECONDS
if wait "$step"; then
  echo "FAILED: the step ended well without a rank"
  exit 1
fi
[[ $((SECONDS - begin)) -le 10 ]] || {
  echo "FAILED: the step took $((SECONDS - begin)) s to end"
  exit 1
}
left=$(ranks)
[[ -z $left ]] || {
  echo "FAILED: ranks are left: $left"
  exit 1
}
echo "ok: a killed rank ends the step after $((SECONDS - begin)) s"

port=$((30000 + RANDOM % 10000))
job=$(WARPROW=$warprow sbatch --parsable --nodes=1 --ntasks-per-node=2 --cpus-per-task=1 --overcommit --output="$state/job" \
  "$example" "$model" --port "$port" --threads 1)
for _ in {1..150}; do
  health=$(python3 -c "import urllib.request; print(urllib.request.urlopen('http://127.0.0.1:$port/health').status)" 2>/dev/null || true)
  [[ $health == 200 ]] && break
  sleep 0.2
done
[[ $health == 200 ]] || {
  cat "$state/job"
  exit 1
}
scancel "$job"
for _ in {1..100}; do
  left=$(ranks)
  [[ -z $left ]] && break
  sleep 0.1
done
[[ -z $left ]] || {
  echo "FAILED: the job's ranks are left: $left"
  exit 1
}
echo "ok: the example of Slurm serves, and scancel ends it"
