# SPDX-License-Identifier: Apache-2.0
"""Several ranks on GPUs against one GPU, with random weights.

    python3 tests/gpu/ranks.py --warprow build/cuda-release/warprow [--only tokens,drafts,adapters,verify,faults] [--rounds N]

Needs two GPUs; without them it is skipped. With four, TP=4, PP=4 and TP=2 with PP=2 are tested too. `tokens`: greedy and seeded answers of several ranks
against those of one rank, in float32 and bf16, over prompts of one to some hundred tokens, with graphs. In float32 all tokens must be equal. In bf16 a request may leave the
other's tokens only where the two likeliest are closer than GAP. Runs repeat bit for bit. `adapters`: the same with a LoRA adapter. `drafts`: with a draft model,
against one rank without drafts. `verify`: `warprow verify` with
several ranks, which compares answers in batches, alone, and from the cache. `faults`: a rank that is killed or stopped ends the
command with its name and nothing left behind; N rounds. `hosts` (as root): the ranks of a launcher on two hosts, which are two
mount namespaces with a /dev/shm each; NCCL goes over TCP between them.
"""

import argparse
import json
import os
import random
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

GAP = 0.08
MAX_TOKENS = 32
VOCAB = 2048
CONFIG = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 512, "num_hidden_layers": 4,
    "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 128, "intermediate_size": 1024, "vocab_size": VOCAB,
    "rms_norm_eps": 1e-6, "max_position_embeddings": 4096, "rope_theta": 1000000.0, "tie_word_embeddings": False,
    "torch_dtype": "bfloat16", "hidden_act": "silu",
}  # fmt: skip
MEMORY = ["--kv-cache-memory-bytes", "512MiB", "--gpu-memory-utilization", "0.3", "--max-num-seqs", "64"]


def write_model(folder):
    """A configuration and a tokenizer that names each id; the weights are dummies."""
    (folder / "config.json").write_text(json.dumps(CONFIG))
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    tokenizer = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
        "pre_tokenizer": level, "post_processor": None, "decoder": level,
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
                  "vocab": {f"t{i}": i for i in range(VOCAB)}, "merges": []},
    }  # fmt: skip
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "tokenizer_config.json").write_text("{}")


def requests():
    rng = random.Random(5)
    lines = []
    for i, length in enumerate((1, 2, 15, 16, 17, 33, 64, 100, 127, 128, 129, 200, 300, 5, 9, 50)):
        fields = {"temperature": 0} if i % 2 == 0 else {"temperature": 0.9, "seed": i, "top_p": 0.95, "top_k": 50}
        prompt = [rng.randrange(VOCAB) for _ in range(length)]
        lines.append({"prompt": prompt, "max_tokens": MAX_TOKENS, "ignore_eos": True, "logprobs": 2, **fields})
    return lines


class Runner:
    def __init__(self, binary, model, device, extra):
        self.binary, self.model, self.device, self.extra = binary, model, device, extra

    def command(self, command, *flags):
        return [self.binary, command, "-m", str(self.model), "--device", self.device, "--load-format", "dummy",
                *MEMORY, *flags, *self.extra]  # fmt: skip

    def generate(self, lines, *flags):
        path = self.model / "prompts.jsonl"
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        command = self.command("generate", "--output", "json", "--prompts-file", str(path), *flags)
        done = subprocess.run(command, capture_output=True, text=True, timeout=40)
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(command)}\n{done.stdout[-1000:]}{done.stderr[-3000:]}")
        return [json.loads(line)["choices"][0] for line in done.stdout.splitlines()]


def compare(lines, want, got, exact):
    """Returns mistakes, and how many requests left the other's tokens at a near-tie."""
    mistakes, left = [], 0
    for i, (line, a, b) in enumerate(zip(lines, want, got)):
        for at, (x, y) in enumerate(zip(a["token_ids"], b["token_ids"])):
            if x == y:
                continue
            top = [entry["logprob"] for entry in a["logprobs"][at]["top"]]
            gap = top[0] - top[1] if len(top) > 1 else 0.0
            if exact or (line["temperature"] == 0 and gap >= GAP):
                mistakes.append(f"request {i}, token {at}: {y} for {x}, gap {gap:.4f}")
            left += 1
            break
    return mistakes, left


def check_tokens(run, alone=None):
    """alone: what runs on one rank, if not the same."""
    lines, failed = requests(), False
    for dtype in ("float32", "bfloat16"):
        try:
            want = (alone or run).generate(lines, "--dtype", dtype)
        except (RuntimeError, subprocess.TimeoutExpired) as error:
            print(f"FAIL {dtype}, one rank: {error}")
            return False
        over_nccl = [[*flags, "--rank-transport", "nccl"] for flags in run.divisions if len(flags) > 2 or flags[1] == "2"]
        for flags in (*run.divisions, *over_nccl):
            name, nccl = " ".join(flags), "nccl" in flags
            if run.device == "cpu" and nccl:
                continue
            began = time.monotonic()
            try:
                got = run.generate(lines, "--dtype", dtype, *flags)
                again = run.generate(lines, "--dtype", dtype, *flags) if not nccl else got
            except (RuntimeError, subprocess.TimeoutExpired) as error:
                print(f"FAIL {dtype} {name}: {error}", flush=True)
                failed = True
                continue
            mistakes, left = compare(lines, want, got, dtype == "float32")
            same = [a["token_ids"] == b["token_ids"] and a["logprobs"] == b["logprobs"] for a, b in zip(got, again)]
            if not all(same):
                mistakes.append(f"{same.count(False)} requests differ when the run is repeated")
            failed = failed or bool(mistakes)
            print(f"{'FAIL' if mistakes else 'ok'} {dtype} {name}: {len(lines)} requests of {MAX_TOKENS} tokens, "
                  f"{left} left at near-ties, {time.monotonic() - began:.1f} s", flush=True)  # fmt: skip
            for mistake in mistakes[:5]:
                print(f"    {mistake}")
    return not failed


def check_adapters(run):
    adapter = run.model / "adapter"
    writer = Path(__file__).resolve().parents[2] / "bench" / "random_adapter.py"
    subprocess.run([sys.executable, writer, run.model, adapter], check=True)
    adapted = Runner(run.binary, run.model, run.device, [*run.extra, "--lora", str(adapter)])
    adapted.divisions = run.divisions
    lines = requests()[:4]
    if [a["token_ids"] for a in adapted.generate(lines)] == [a["token_ids"] for a in run.generate(lines)]:
        print("FAIL the adapter changes nothing")
        return False
    return check_tokens(adapted)


def check_drafts(run):
    # The model drafts for itself, so that many drafts are right.
    config = {"method": "draft_model", "model": str(run.model), "num_speculative_tokens": 3, "adaptive": False}
    drafting = Runner(run.binary, run.model, run.device, [*run.extra, "--speculative-config", json.dumps(config)])
    drafting.divisions = [flags for flags in run.divisions if "-pp" not in flags]
    return check_tokens(drafting, run)


def check_verify(run):
    passed = True
    for flags in run.divisions:
        command = run.command("verify", "--num-requests", "12", "--max-input-len", "200", "--output-len", "24", *flags)
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        except subprocess.TimeoutExpired:
            print(f"FAIL verify {flags}: not done after 60 s")
            passed = False
            continue
        print(f"{'ok' if done.returncode == 0 else 'FAIL'} verify {' '.join(flags)}\n{done.stdout[-1500:]}", flush=True)
        if done.returncode != 0:
            print(done.stderr[-1500:])
            passed = False
    return passed


def on_two_hosts(run, prompts, flags):
    """The choices that ranks of a launcher make, the first half of them on one host and the others on another."""
    size = int(flags[1]) * (int(flags[3]) if len(flags) > 2 else 1)
    command = run.command("generate", "--output", "json", "--prompts-file", str(prompts), "--dtype", "float32", *flags,
                          "--distributed-executor-backend", "external_launcher")  # fmt: skip
    hosts, per_host = [], size // 2
    for host in range(2):
        lines = ["mount -t tmpfs tmpfs /dev/shm"]
        for place in range(per_host):
            rank = host * per_host + place
            output = f">{run.model}/rank{rank}.out 2>{run.model}/rank{rank}.err"
            lines.append(f"RANK={rank} LOCAL_RANK={place} CUDA_VISIBLE_DEVICES={rank} {shlex.join(command)} {output} &")
        lines.append("wait")
        env = {**os.environ, "WORLD_SIZE": str(size), "LOCAL_WORLD_SIZE": str(per_host), "MASTER_ADDR": "127.0.0.1",
               "MASTER_PORT": "29731", "NCCL_SHM_DISABLE": "1", "NCCL_SOCKET_IFNAME": "lo"}  # fmt: skip
        if per_host == 1:
            env["NCCL_P2P_DISABLE"] = "1"
        hosts.append(subprocess.Popen(["unshare", "-m", "bash", "-c", "\n".join(lines)], env=env, start_new_session=True))
    for host in hosts:
        try:
            host.wait(timeout=60)
        except subprocess.TimeoutExpired:
            os.killpg(host.pid, signal.SIGKILL)
    errors = "".join((run.model / f"rank{rank}.err").read_text()[-600:] for rank in range(size))
    choices = [json.loads(line)["choices"][0] for line in (run.model / "rank0.out").read_text().splitlines()]
    return choices, errors


def check_hosts(run):
    passed, lines = True, requests()
    want = run.generate(lines, "--dtype", "float32")
    for flags in (["-tp", "2"], ["-pp", "2"], ["-tp", "2", "-pp", "2"]):
        if flags not in run.divisions:
            continue
        got, errors = on_two_hosts(run, run.model / "prompts.jsonl", flags)
        mistakes, _ = compare(lines, want, got, True)
        ok = len(got) == len(want) and not mistakes
        passed = passed and ok
        print(f"{'ok' if ok else 'FAIL'} two hosts, {' '.join(flags)}: {len(got)} of {len(want)} requests", flush=True)
        if not ok:
            print(f"    {mistakes[:3]}\n{errors}")
    return passed


def ranks_of(pid):
    """Processes of ranks, by rank."""
    found = {}
    for child in Path(f"/proc/{pid}/task").glob("*/children"):
        for process in child.read_text().split():
            words = Path(f"/proc/{process}/cmdline").read_bytes().split(b"\0")
            if b"rank" in words:
                found[int(words[words.index(b"rank") + 1])] = int(process)
    return found


def where_threads_are(pids):
    """What the kernel says of each thread of these processes: its name, its state and the call that it waits in."""
    for pid in pids:
        for task in sorted(Path(f"/proc/{pid}/task").glob("*")):
            try:
                state = (task / "stat").read_text().rsplit(")", 1)[1].split()[0]
                name, call, wait = ((task / file).read_text().strip() for file in ("comm", "syscall", "wchan"))
            except OSError:
                continue
            print(f"    process {pid}, thread {task.name} {name}: {state}, call {call.split()[0]}, {wait}")


def check_faults(run):
    passed = True
    lines = [{"prompt": [1, 2, 3], "max_tokens": 3500, "temperature": 0, "ignore_eos": True}] * 2000
    path = run.model / "long.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    faults = [(["-tp", "2"], 1, signal.SIGKILL), (["-tp", "2"], 0, signal.SIGSTOP), (["-pp", "2"], 0, signal.SIGKILL)]
    if len(run.divisions) > 2:
        faults += [(["-tp", "4"], 3, signal.SIGKILL), (["-tp", "2", "-pp", "2"], 2, signal.SIGSTOP)]
    for flags, rank, how in faults * run.rounds:
        size = int(flags[1]) * (int(flags[3]) if len(flags) > 2 else 1)
        process = subprocess.Popen(run.command("generate", "--output", "json", "--prompts-file", str(path), *flags),
                                   stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)  # fmt: skip
        # A rank has begun once its process has used a second of a core behind its start.
        deadline = time.monotonic() + 30
        ranks = {}
        while time.monotonic() < deadline and len(ranks) < size:
            time.sleep(0.1)
            ranks = ranks_of(process.pid)
        time.sleep(run.start_time)
        began = time.monotonic()
        alive = process.poll() is None
        if rank in ranks and alive:
            os.kill(ranks[rank], how)
        try:
            _, stderr = process.communicate(timeout=30)
        except subprocess.TimeoutExpired:
            where_threads_are([process.pid, *ranks.values()])
            process.kill()
            _, stderr = process.communicate()
        took = time.monotonic() - began
        left = [pid for pid in ranks.values() if Path(f"/proc/{pid}").exists()]
        ok = alive and process.returncode != 0 and took < 10 and not left and f"rank {rank}" in stderr
        passed = passed and ok
        last = stderr.strip().splitlines()[-1] if stderr.strip() else ""
        print(f"{'ok' if ok else 'FAIL'} {' '.join(flags)}, rank {rank} gets {how.name}: exit code {process.returncode} "
              f"after {took:.1f} s, {len(left)} processes left: {last}", flush=True)  # fmt: skip
        for pid in left:
            os.kill(pid, signal.SIGKILL)
    return passed


def num_gpus():
    try:
        return subprocess.run(["nvidia-smi", "--list-gpus"], capture_output=True, text=True).stdout.count("GPU ")
    except FileNotFoundError:
        return 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--warprow", required=True, help="the built program")
    parser.add_argument("--only", default="tokens,drafts,adapters,verify,faults")
    parser.add_argument("--device", default="cuda", help="cpu tests this script")
    parser.add_argument("--rounds", type=int, default=1, help="how often each fault is tried")
    parser.add_argument("--start-time", type=float, default=3, help="seconds until ranks run steps")
    parser.add_argument("--flags", default="", help="more flags for warprow, separated by blanks")
    options = parser.parse_args()
    if options.device == "cuda" and num_gpus() < 2:
        print("skipped: needs two GPUs")
        sys.exit(77)
    checks = {
            "tokens": check_tokens, "drafts": check_drafts, "adapters": check_adapters, "verify": check_verify,
            "faults": check_faults, "hosts": check_hosts,
        }  # fmt: skip
    with tempfile.TemporaryDirectory() as name:
        write_model(Path(name))
        run = Runner(options.warprow, Path(name), options.device, options.flags.split())
        run.start_time, run.rounds = options.start_time, options.rounds
        run.divisions = [["-tp", "2"], ["-pp", "2"]]
        if options.device == "cpu" or num_gpus() >= 4:
            run.divisions += [["-tp", "4"], ["-pp", "4"], ["-tp", "2", "-pp", "2"]]
        passed = [checks[check](run) for check in options.only.split(",")]
    sys.exit(0 if all(passed) else 1)


if __name__ == "__main__":
    main()
