#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""warprow against ONNX Runtime on this machine's CPU, alternately: a BERT of MiniLM's size (22 M parameters, random weights
that bf16 holds exactly), 64 texts of 128 tokens, the mean of each.

    bench/compare/onnxruntime_bert.py [--binary build/cpu-release/warprow] [--rounds 5] [--threads N]

Needs onnxruntime, onnx and numpy. ONNX Runtime gets the graph that its optimiser makes of BERT (its fused operations of
embeddings, attention, norms and GELU), in float32 and with dynamic int8, and the best of several batch sizes. Each engine's
figure is the difference between a long and a short run of a process: no start-up is in it. Wall time and CPU time.
"""

import argparse
import json
import os
import resource
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent.parent
LAYERS, WIDTH, HEADS, INNER, VOCAB, POSITIONS = 6, 384, 12, 1536, 30522, 512
TEXTS, TOKENS = 64, 128
ROUNDS_LONG, ROUNDS_SHORT = 4, 1  # times TEXTS


def bf16(values):
    bits = values.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16 << 16).view(np.float32)


def weights():
    rng = np.random.default_rng(1)
    out = {}

    def add(name, *shape, scale, mean=0.0):
        out[name] = bf16(mean + scale * rng.standard_normal(shape, dtype=np.float32))

    def norm(name):
        add(name + ".weight", WIDTH, scale=0.1, mean=1.0)
        add(name + ".bias", WIDTH, scale=0.1)

    def dense(name, outputs, inputs):
        add(name + ".weight", outputs, inputs, scale=1.5 * inputs ** -0.5)
        add(name + ".bias", outputs, scale=0.1)

    for name, rows in (("word", VOCAB), ("position", POSITIONS), ("token_type", 2)):
        add(f"embeddings.{name}_embeddings.weight", rows, WIDTH, scale=0.5)
    norm("embeddings.LayerNorm")
    for i in range(LAYERS):
        layer = f"encoder.layer.{i}."
        for part in ("query", "key", "value"):
            dense(layer + "attention.self." + part, WIDTH, WIDTH)
        dense(layer + "attention.output.dense", WIDTH, WIDTH)
        norm(layer + "attention.output.LayerNorm")
        dense(layer + "intermediate.dense", INNER, WIDTH)
        dense(layer + "output.dense", WIDTH, INNER)
        norm(layer + "output.LayerNorm")
    return out


def write_checkpoint(folder, values):
    header, data = {}, bytearray()
    for name, value in values.items():
        half = (value.view(np.uint32) >> 16).astype("<u2").tobytes()
        header[name] = {"dtype": "BF16", "shape": list(value.shape), "data_offsets": [len(data), len(data) + len(half)]}
        data += half
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
    (folder / "config.json").write_text(json.dumps({
        "architectures": ["BertModel"], "model_type": "bert", "hidden_size": WIDTH, "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS, "intermediate_size": INNER, "vocab_size": VOCAB, "max_position_embeddings": POSITIONS,
        "type_vocab_size": 2, "hidden_act": "gelu", "layer_norm_eps": 1e-12}))
    (folder / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n")


def write_onnx(path, w):
    from onnx import TensorProto, helper, numpy_helper, save
    nodes, constants = [], {}

    def constant(name, value):
        constants[name] = numpy_helper.from_array(np.ascontiguousarray(value), name)
        return name

    def node(kind, inputs, output, domain="com.microsoft", outputs=1, **attributes):
        names = [output, *(f"{output}.{i}" for i in range(1, outputs))]
        nodes.append(helper.make_node(kind, inputs, names, domain=domain, **attributes))
        return output

    def part(name):
        return constant(name, w[name])

    x = node("EmbedLayerNormalization",
             ["ids", "", *(part(f"embeddings.{t}_embeddings.weight") for t in ("word", "position")), "",
              part("embeddings.LayerNorm.weight"), part("embeddings.LayerNorm.bias")], "x", outputs=2, epsilon=1e-12)
    # Without segments: those of the first are added to the positions.
    constants["embeddings.position_embeddings.weight"] = numpy_helper.from_array(
        w["embeddings.position_embeddings.weight"] + w["embeddings.token_type_embeddings.weight"][0],
        "embeddings.position_embeddings.weight")
    for i in range(LAYERS):
        layer = f"encoder.layer.{i}."
        own = [layer + "attention.self." + name for name in ("query", "key", "value")]
        qkv = constant(f"{i}.qkv", np.concatenate([w[name + ".weight"].T for name in own], 1))
        bias = constant(f"{i}.qkv.bias", np.concatenate([w[name + ".bias"] for name in own]))
        attended = node("Attention", [x, qkv, bias], f"{i}.attended", num_heads=HEADS)

        def product(value, name):
            return node("MatMul", [value, constant(name + ".T", w[name + ".weight"].T)], name + ".out", domain="")

        def joined(value, name, norm, x=x):
            return node("SkipLayerNormalization",
                        [value, x, part(norm + ".weight"), part(norm + ".bias"), part(name + ".bias")], norm + ".out",
                        epsilon=1e-12)

        name = layer + "attention.output"
        x = joined(product(attended, name + ".dense"), name + ".dense", name + ".LayerNorm")
        inner = layer + "intermediate.dense"
        activated = node("BiasGelu", [product(x, inner), part(inner + ".bias")], f"{i}.gelu")
        name = layer + "output"
        x = joined(product(activated, name + ".dense"), name + ".dense", name + ".LayerNorm", x)
    node("ReduceMean", [x], "mean", domain="", axes=[1], keepdims=0)
    graph = helper.make_graph(nodes, "bert", [helper.make_tensor_value_info("ids", TensorProto.INT32, ["batch", "tokens"])],
                              [helper.make_tensor_value_info("mean", TensorProto.FLOAT, ["batch", WIDTH])],
                              list(constants.values()))
    save(helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17),
                                                              helper.make_opsetid("com.microsoft", 1)]), path)


# Runs in a process of its own: MODEL BATCH ROUNDS THREADS [OUT]
PEER = """
import sys, time, numpy as np, onnxruntime as ort
model, batch, rounds, threads = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
options = ort.SessionOptions()
options.intra_op_num_threads = threads
session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
ids = np.load(sys.argv[5]).astype(np.int32)
for i in range(rounds):
    out = np.concatenate([session.run(None, {"ids": ids[at:at + batch]})[0] for at in range(0, len(ids), batch)])
if len(sys.argv) > 6:
    np.save(sys.argv[6], out)
"""


def measured(command):
    """Wall and CPU seconds of a process."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run([str(word) for word in command], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    took, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode != 0:
        sys.exit(f"{command[0]}: {done.stderr[-2000:]}")
    return np.array([took, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime])


def cosines(a, b):
    return (a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--binary", type=Path, default=ROOT / "build/cpu-release/warprow")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        compare(args, Path(work))


def compare(args, work):
    from onnxruntime.quantization import QuantType, quantize_dynamic
    values = weights()
    write_checkpoint(work, values)
    write_onnx(work / "float32.onnx", values)
    quantize_dynamic(work / "float32.onnx", work / "int8.onnx", weight_type=QuantType.QInt8,
                     op_types_to_quantize=["MatMul", "Attention"], extra_options={"DefaultTensorType": 1})
    ids = np.random.default_rng(2).integers(1000, VOCAB, (TEXTS, TOKENS))
    np.save(work / "ids.npy", ids)
    lines = "".join(json.dumps({"token_ids": row.tolist()}) + "\n" for row in ids)
    for rounds in (ROUNDS_LONG, ROUNDS_SHORT):
        (work / f"ids{rounds}").write_text(lines * rounds)

    def ours(dtype, quantization="none"):
        return lambda rounds, *out: [args.binary, "embed", work, "--device", "cpu", "--dtype", dtype, "--threads", args.threads,
                                     "--quantization", quantization, "--no-normalize", "-i", work / f"ids{rounds}", "-o",
                                     *(out or [work / "ours.npy"])]

    def peer(kind, batch):
        return lambda rounds, *out: [sys.executable, "-c", PEER, work / f"{kind}.onnx", batch, rounds, args.threads,
                                     work / "ids.npy", *out]

    engines = {"warprow, float32": ours("float32"), "warprow, bf16 products": ours("auto"),
               "warprow, --quantization int8": ours("auto", "int8")}
    for kind in ("float32", "int8"):
        for batch in (8, 64):
            engines[f"ONNX Runtime, {kind}, batch {batch}"] = peer(kind, batch)
    results = {name: [] for name in engines}
    vectors = {}
    for name, command in engines.items():
        measured(command(ROUNDS_SHORT, work / "vectors.npy"))
        vectors[name] = np.load(work / "vectors.npy")[:TEXTS]
    exact = vectors["ONNX Runtime, float32, batch 8"]
    for _ in range(args.rounds):
        for name, command in engines.items():
            long, short = measured(command(ROUNDS_LONG)), measured(command(ROUNDS_SHORT))
            results[name].append((long - short) / (ROUNDS_LONG - ROUNDS_SHORT))
    print(f"{TEXTS} texts of {TOKENS} tokens, {args.threads} threads, median (least) of {args.rounds} rounds in turn")
    print("| | wall, ms | CPU, ms | least cosine with ONNX Runtime float32 |\n|---|---|---|---|")
    for name, times in results.items():
        wall, cpu = ([1e3 * t[i] for t in times] for i in (0, 1))
        print(f"| {name} | {statistics.median(wall):.0f} ({min(wall):.0f}) | {statistics.median(cpu):.0f} ({min(cpu):.0f}) "
              f"| {cosines(vectors[name], exact).min():.6f} |", flush=True)


if __name__ == "__main__":
    main()
