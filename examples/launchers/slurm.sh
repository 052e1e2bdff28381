#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Serves a model on the ranks of a Slurm job, one task for each: sbatch examples/launchers/slurm.sh [MODEL [FLAGS]]
# All tasks run the same command; the first serves, on its node's port 8000. scancel lets running answers finish.
#SBATCH --job-name=warprow
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=2
#SBATCH --signal=TERM@45
set -euo pipefail

model=${1:-smollm2}
MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export MASTER_ADDR
export MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000)) # two jobs on one node do not meet

# --kill-on-bad-exit: a rank that fails ends the step, which the other ranks do by themselves too.
exec srun --kill-on-bad-exit=1 "${WARPROW:-warprow}" serve "$model" --host 0.0.0.0 \
  -pp "$SLURM_NTASKS" --distributed-executor-backend external_launcher "${@:2}"
