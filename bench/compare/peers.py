# SPDX-License-Identifier: Apache-2.0
"""The engines that warprow is compared with, each built or installed once in its own folder of the cache, and model files
for the comparison, made with the peer's own tool."""

import math
import os
import random
import struct
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tools"))
import fetch  # noqa: E402

LLAMA_VERSION = "0.3.36"
LLAMA_SHA256 = "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e"
LLAMA_PROGRAMS = ("llama-bench", "llama-batched-bench", "llama-completion", "llama-server", "llama-quantize")
LLAMA_FLAGS = ("-DCMAKE_BUILD_TYPE=Release", "-DBUILD_SHARED_LIBS=OFF", "-DLLAMA_BUILD_UI=OFF",
               "-DLLAMA_USE_PREBUILT_UI=OFF", "-DLLAMA_BUILD_TESTS=OFF", "-DLLAMA_BUILD_APP=OFF", "-DLLAMA_OPENSSL=OFF")
LLAMA_AVX2 = ("-DGGML_NATIVE=OFF", "-DGGML_AVX2=ON", "-DGGML_FMA=ON", "-DGGML_F16C=ON", "-DGGML_BMI2=ON")
# The instruction sets that it can be built for. Off by default without GGML_NATIVE: AVX-512, AVX-VNNI and AMX.
LLAMA_ISAS = {# gcc 12's _tile_loadconfig reads 8 bytes of its 64 as far as gcc knows. gcc then drops the stores of the
              # others, and the peer's AMX kernels fault.
              "native": ("-DGGML_NATIVE=ON", "-DCMAKE_CXX_FLAGS=-fno-tree-dse -fno-dse"),
              "avx2": LLAMA_AVX2,
              "avx_vnni": (*LLAMA_AVX2, "-DGGML_AVX_VNNI=ON")}
OPENVINO_VERSION = "2026.4.1"
OPENVINO_REQUIREMENTS = Path(__file__).with_name("openvino_requirements.txt")


def say(text):
    print(text, file=sys.stderr, flush=True)


def deps_dir():
    return fetch.cache_dir() / "deps"


def run_quietly(command, log):
    """Runs a command and exits with the tail of its log if it fails."""
    with log.open("ab") as file:
        if subprocess.run([str(part) for part in command], stdout=file, stderr=file).returncode != 0:
            tail = log.read_text(errors="replace").splitlines()[-20:]
            sys.exit("\n".join([*tail, f"failed: {command[0]} (the whole log: {log})"]))


def fetch_llama_source(folder):
    """Fetches llama.cpp, which the source package of llama-cpp-python contains. pip checks the hash."""
    with tempfile.TemporaryDirectory(dir=folder) as work:
        work = Path(work)
        requirements = work / "requirements.txt"
        requirements.write_text(f"llama-cpp-python=={LLAMA_VERSION} --hash=sha256:{LLAMA_SHA256}\n")
        run_quietly([sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps",
                     "--require-hashes", "--no-binary", "llama-cpp-python", "--dest", work, "--requirement", requirements],
                    folder / "build.log")
        inside = f"llama_cpp_python-{LLAMA_VERSION}/vendor/llama.cpp"
        with tarfile.open(next(work.glob("*.tar.gz"))) as archive:
            members = [member for member in archive if member.name.startswith(inside + "/")]
            archive.extractall(work, members=members, filter="data")
        (work / inside).rename(folder / "source")


def llama_cpp(isa="native"):
    """The folder of the peer's programs, built once for an instruction set (10 minutes of one core)."""
    folder = deps_dir() / f"llama.cpp-{LLAMA_VERSION}"
    build = folder / ("build" if isa == "native" else f"build-{isa}")
    complete = build / ".complete"
    flags = (*LLAMA_FLAGS, *LLAMA_ISAS[isa])
    if complete.exists() and complete.read_text() == " ".join(flags):
        return build / "bin"
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "source").exists():
        say(f"fetching llama.cpp (llama-cpp-python {LLAMA_VERSION}, 77 MB)")
        fetch_llama_source(folder)
    log = folder / f"{build.name}.log"
    say(f"building llama.cpp ({isa}); log: {log}")
    # Ninja never considers this tree's manifest up to date, so use make.
    run_quietly(["cmake", "-G", "Unix Makefiles", "-S", folder / "source", "-B", build, *flags], log)
    run_quietly(["nice", "make", "-C", build, f"-j{os.cpu_count()}", *LLAMA_PROGRAMS], log)
    complete.write_text(" ".join(flags))
    return build / "bin"


def openvino_python():
    """A Python interpreter that has OpenVINO GenAI, in a virtual environment of its own (450 MB)."""
    folder = deps_dir() / f"openvino-{OPENVINO_VERSION}"
    complete = folder / ".complete"
    if not complete.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        say(f"installing OpenVINO GenAI {OPENVINO_VERSION}")
        log = folder.with_suffix(".log")
        run_quietly([sys.executable, "-m", "venv", folder], log)
        run_quietly([folder / "bin" / "pip", "install", "--quiet", "--no-deps", "--require-hashes", "--only-binary", ":all:",
                     "--requirement", OPENVINO_REQUIREMENTS], log)
        complete.touch()
    return folder / "bin" / "python"


def requantised(model, kind, pure=False):
    """The same model in another type (Q4_0, Q8_0, BF16, Q4_K, ...), made by llama-quantize, in the cache."""
    target = fetch.cache_dir() / "models" / f"{model.stem.split('.')[0]}.{kind}.gguf"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        say(f"making {target.name}")
        partial = target.with_suffix(".partial")
        run_quietly([llama_cpp() / "llama-quantize", "--allow-requantize", *(["--pure"] if pure else []), model, partial,
                     kind], target.with_suffix(".log"))
        partial.rename(target)
    return target


# GGUF's type numbers of metadata values.
GGUF_UINT32, GGUF_FLOAT32, GGUF_STRING = 4, 6, 8
GGUF_F32, GGUF_Q8_0 = 0, 8
WIDE_DIMS = {"block_count": 12, "embedding_length": 1024, "feed_forward_length": 3072, "attention.head_count": 16,
             "attention.head_count_kv": 4, "rope.dimension_count": 64, "context_length": 8192}

EXPERT_DIMS = {"block_count": 6, "embedding_length": 512, "feed_forward_length": 1536, "attention.head_count": 8,
               "attention.head_count_kv": 2, "attention.key_length": 64, "attention.value_length": 64,
               "attention.layer_norm_rms_epsilon": 1e-6, "rope.freq_base": 1e6, "context_length": 8192, "expert_count": 64,
               "expert_used_count": 8, "expert_feed_forward_length": 256}
VOCABULARY = 49152  # SmolLM2's


def wide_tensors(vocabulary):
    """Names and shapes, input dimension first, of a Llama whose dimensions suit K-quants (multiples of 256)."""
    d, ff, kv = WIDE_DIMS["embedding_length"], WIDE_DIMS["feed_forward_length"], 256
    yield "token_embd.weight", (d, vocabulary)
    yield "output_norm.weight", (d,)
    for layer in range(WIDE_DIMS["block_count"]):
        for name, shape in (("attn_norm", (d,)), ("attn_q", (d, d)), ("attn_k", (d, kv)), ("attn_v", (d, kv)),
                            ("attn_output", (d, d)), ("ffn_norm", (d,)), ("ffn_gate", (d, ff)), ("ffn_up", (d, ff)),
                            ("ffn_down", (ff, d))):
            yield f"blk.{layer}.{name}.weight", shape


def expert_tensors(vocabulary):
    """The same of a Qwen3-MoE with small experts."""
    d, ff, experts = EXPERT_DIMS["embedding_length"], EXPERT_DIMS["expert_feed_forward_length"], EXPERT_DIMS["expert_count"]
    yield "token_embd.weight", (d, vocabulary)
    yield "output_norm.weight", (d,)
    for layer in range(EXPERT_DIMS["block_count"]):
        for name, shape in (("attn_norm", (d,)), ("attn_q", (d, 512)), ("attn_k", (d, 128)), ("attn_v", (d, 128)),
                            ("attn_q_norm", (64,)), ("attn_k_norm", (64,)), ("attn_output", (512, d)), ("ffn_norm", (d,)),
                            ("ffn_gate_inp", (d, experts)), ("ffn_gate_exps", (d, ff, experts)),
                            ("ffn_up_exps", (d, ff, experts)), ("ffn_down_exps", (ff, d, experts))):
            yield f"blk.{layer}.{name}.weight", shape


def metadata_of(path):
    """The raw key-value pairs of a GGUF file, {key: (type and value as bytes)}."""
    data = memoryview(path.read_bytes()[:8 << 20])
    num_pairs = struct.unpack_from("<Q", data, 16)[0]
    sizes = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
    pairs, at = {}, 24

    def skip_value(kind, at):
        if kind == 8:
            return at + 8 + struct.unpack_from("<Q", data, at)[0]
        if kind == 9:
            inner, count = struct.unpack_from("<IQ", data, at)
            at += 12
            if inner in sizes:
                return at + sizes[inner] * count
            for _ in range(count):
                at = skip_value(inner, at)
            return at
        return at + sizes[kind]

    for _ in range(num_pairs):
        length = struct.unpack_from("<Q", data, at)[0]
        key = bytes(data[at + 8:at + 8 + length]).decode()
        start = at + 8 + length
        at = skip_value(struct.unpack_from("<I", data, start)[0], start + 4)
        pairs[key] = bytes(data[start:at])
    return pairs


def random_tensor(name, shape, rng):
    """Norms are ones in F32, a router's rows random in F32. Other tensors are Q8_0 with random integers and a scale that
    keeps activations near one."""
    if len(shape) == 1:
        return GGUF_F32, struct.pack("<f", 1.0) * shape[0]
    if "ffn_gate_inp" in name:
        count = shape[0] * shape[1]
        return GGUF_F32, struct.pack(f"<{count}f", *(rng.gauss(0, shape[0] ** -0.5) for _ in range(count)))
    scale = struct.pack("<e", 1.0 / 73.0 / shape[0] ** 0.5)
    numbers = rng.randbytes(math.prod(shape))
    return GGUF_Q8_0, b"".join(scale + numbers[i:i + 32] for i in range(0, len(numbers), 32))


def write_random_model(target, pairs, tensors):
    """Writes a GGUF file of random weights with these metadata, {key: type and value as bytes}, and tensors' shapes."""
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    say(f"making {target.name}")
    rng = random.Random(1)
    infos, bodies, offset = [], [], 0
    for name, shape in tensors:
        kind, body = random_tensor(name, shape, rng)
        dims = struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
        infos.append(struct.pack("<Q", len(name)) + name.encode() + dims + struct.pack("<IQ", kind, offset))
        bodies.append(body + bytes(-len(body) % 32))
        offset += len(bodies[-1])
    keys = b"".join(struct.pack("<Q", len(key)) + key.encode() + value for key, value in pairs.items())
    head = b"GGUF" + struct.pack("<IQQ", 3, len(infos), len(pairs)) + keys + b"".join(infos)
    partial = target.with_suffix(".partial")
    with partial.open("wb") as file:
        file.write(head + bytes(-len(head) % 32))
        file.writelines(bodies)
    partial.rename(target)
    return target


def described(pairs, arch, dims):
    """The metadata with the dimensions of this architecture in place of another's."""
    pairs = {key: value for key, value in pairs.items() if not key.startswith("llama.")}
    pairs["general.architecture"] = struct.pack("<IQ", GGUF_STRING, len(arch)) + arch.encode()
    pairs["general.file_type"] = struct.pack("<II", GGUF_UINT32, 7)
    for key, value in dims.items():
        kind = "<If" if isinstance(value, float) else "<II"
        pairs[f"{arch}.{key}"] = struct.pack(kind, GGUF_FLOAT32 if isinstance(value, float) else GGUF_UINT32, value)
    return pairs


def wide_model(like):
    """A Llama of 190 M random weights with the tokenizer of `like`, as Q8_0: SmolLM2's rows of 576 do not divide into the
    256 of a K-quant's block, so K-quants are compared on this one."""
    pairs = metadata_of(like)
    for key, value in WIDE_DIMS.items():
        pairs["llama." + key] = struct.pack("<II", GGUF_UINT32, value)
    pairs["general.file_type"] = struct.pack("<II", GGUF_UINT32, 7)
    return write_random_model(fetch.cache_dir() / "models" / "wide.Q8_0.gguf", pairs, wide_tensors(VOCABULARY))


def experts_model(like):
    """A Qwen3-MoE of 181 M random weights, 24 M of them of experts for each token, with the tokenizer of `like`, as Q8_0."""
    pairs = described(metadata_of(like), "qwen3moe", EXPERT_DIMS)
    return write_random_model(fetch.cache_dir() / "models" / "experts.Q8_0.gguf", pairs, expert_tensors(VOCABULARY))
