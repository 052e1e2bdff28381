#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures power and SM clock of one GPU while `warprow bench latency` decodes, for models with random weights.

    bench/gpu_power.py                                        0.6B and 8B, batch 1 to 512, about 3 minutes
    bench/gpu_power.py --models 8B --batch-sizes 32,128 -- --quantization fp8

A first run of each row says how many steps fill four seconds. Of a run of that length the three seconds before its last half
second count: watts from the GPU's energy counter, the SM clock as the mean of samples every 20 ms. Needs NVIDIA's management
library. What follows `--` goes to every command.
"""

import argparse
import ctypes
import json
import math
import subprocess
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MODELS = {"0.6B": "Qwen3-0.6B", "8B": "Qwen3-8B", "30B-A3B": "Qwen3-30B-A3B", "gpt-oss-20b": "gpt-oss-20b"}
RUN_SECONDS = 4.0
COUNTED_SECONDS = 3.0
LAST_SECONDS = 0.5
OUTPUT_LEN = 512
SM_CLOCK = 1  # NVML_CLOCK_SM


class Gpu:
    def __init__(self, index):
        self.nvml = ctypes.CDLL("libnvidia-ml.so.1")
        self.device = ctypes.c_void_p()
        self.ask("nvmlInit_v2")
        self.ask("nvmlDeviceGetHandleByIndex_v2", index, ctypes.byref(self.device))

    def ask(self, function, *arguments):
        result = getattr(self.nvml, function)(*arguments)
        if result != 0:
            raise SystemExit(f"{function}: NVML error {result}")

    def millijoules(self):
        value = ctypes.c_ulonglong()
        self.ask("nvmlDeviceGetTotalEnergyConsumption", self.device, ctypes.byref(value))
        return value.value

    def number(self, function, *arguments):
        value = ctypes.c_uint()
        self.ask(function, self.device, *arguments, ctypes.byref(value))
        return value.value


def latency(args, model, batch, iters):
    command = [args.binary, "bench", "latency", str(ROOT / "bench" / "models" / MODELS[model]), "--load-format", "dummy",
               "--device", "cuda", "--max-model-len", "4096", "--input-len", "128", "--output-len", str(OUTPUT_LEN),
               "--batch-size", str(batch), "--num-iters-warmup", "0", "--num-iters", str(iters), *args.more,
               "--output", "json"]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)}: {done.stderr.strip()}")
    result = json.loads(done.stdout)
    return result["results"][0] if "results" in result else result


def measure(args, gpu, model, batch):
    """Milliseconds a step, watts and MHz."""
    guess = latency(args, model, batch, 1)["decode_ms_per_step"]
    iters = math.ceil(RUN_SECONDS * 1e3 / (guess * OUTPUT_LEN))
    samples = []
    done = threading.Event()

    def sample():
        while not done.wait(0.02):
            samples.append((time.monotonic(), gpu.millijoules(), gpu.number("nvmlDeviceGetClockInfo", SM_CLOCK)))

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        ms = latency(args, model, batch, iters)["decode_ms_per_step"]
    finally:
        done.set()
        thread.join()
    end = samples[-1][0] - LAST_SECONDS
    counted = [one for one in samples if end - COUNTED_SECONDS <= one[0] <= end]
    first, last = counted[0], counted[-1]
    watts = (last[1] - first[1]) / 1e3 / (last[0] - first[0])
    return ms, watts, sum(one[2] for one in counted) / len(counted)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--binary", default=str(ROOT / "build" / "cuda-release" / "warprow"))
    parser.add_argument("--models", type=lambda text: text.split(","), default=["0.6B", "8B"], help=",".join(MODELS))
    parser.add_argument("--batch-sizes", type=lambda text: [int(part) for part in text.split(",")],
                        default=[1, 8, 32, 128, 256, 512])  # fmt: skip
    parser.add_argument("--gpu", type=int, default=0, help="its index")
    parser.add_argument("more", nargs="*", help="flags for every command, after --")
    args = parser.parse_args()
    unknown = [model for model in args.models if model not in MODELS]
    if unknown:
        parser.error(f"--models: {unknown[0]} is none of {', '.join(MODELS)}")
    gpu = Gpu(args.gpu)
    limit = gpu.number("nvmlDeviceGetEnforcedPowerLimit") / 1e3
    most = gpu.number("nvmlDeviceGetMaxClockInfo", SM_CLOCK)
    print(f"limits: {limit:.0f} W, {most} MHz\n\n| | ms a step | W | SM clock, MHz | mJ a token |\n|---|---|---|---|---|", flush=True)
    for model in args.models:
        for batch in args.batch_sizes:
            ms, watts, clock = measure(args, gpu, model, batch)
            print(f"| {model}, batch {batch} | {ms:.3f} | {watts:.0f} | {clock:.0f} | {watts * ms / batch:.1f} |", flush=True)


if __name__ == "__main__":
    main()
