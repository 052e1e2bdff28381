#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Serves a model on the ranks that mpirun starts. Each runs the same command; rank 0 serves.
#   examples/launchers/mpirun.sh [MODEL [FLAGS]]        two ranks on this host
#   HOSTS=node1:1,node2:1 examples/launchers/mpirun.sh  one on each of two hosts; warprow and the model are on both
set -euo pipefail

model=${1:-smollm2}
hosts=${HOSTS:-localhost:2}
first=${hosts%%[:,]*}
[[ $first == localhost ]] && first=127.0.0.1
ranks=0
for host in ${hosts//,/ }; do
  ranks=$((ranks + ${host#*:}))
done

# --bind-to none: warprow divides the cores of a host itself.
exec mpirun -np "$ranks" --host "$hosts" --bind-to none -x MASTER_ADDR="$first" -x MASTER_PORT="${MASTER_PORT:-29500}" \
  "${WARPROW:-warprow}" serve "$model" -pp "$ranks" --distributed-executor-backend external_launcher "${@:2}"
