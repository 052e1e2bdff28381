#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""warprow against sentence-transformers on one GPU, alternately: BERT-large with random bf16 weights, 512 and 4,096 texts of 256
tokens, from text to the mean of each.

    bench/compare/sentence_transformers_bert.py [--binary build/cuda-release/warprow] [-- --max-num-batched-tokens 32768]

Needs sentence-transformers with a torch for CUDA. `warprow embed` prints its time from the first line read to the last vector
written; sentence-transformers' is that of encode(), the second of two calls, without its start. Flags after -- go to warprow.
"""

import argparse
import os
import pty
import random
import re
import tempfile
import time
from pathlib import Path

import numpy as np
import sentence_transformers
import torch
import transformers

ROOT = Path(__file__).resolve().parent.parent.parent
COUNTS = (512, 4096)


def write_model(folder):
    letters = [chr(code) for code in range(ord("a"), ord("z") + 1)]
    words = [a + b for a in letters for b in letters]
    vocab = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *words]
    config = transformers.BertConfig(hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096)
    torch.manual_seed(0)
    with torch.device("cuda"):
        transformers.BertModel(config, add_pooling_layer=False).to(torch.bfloat16).save_pretrained(folder)
    transformers.BertTokenizerFast(vocab={text: i for i, text in enumerate(vocab)}).save_pretrained(folder)
    (folder / "vocab.txt").write_text("\n".join(vocab))
    random.seed(1)
    texts = [" ".join(random.choice(words) for _ in range(254)) for _ in range(max(COUNTS))]
    for count in COUNTS:
        (folder / f"texts{count}").write_text("\n".join(texts[:count]) + "\n")
    return texts


def ours(binary, folder, count, more):
    """The last line that the command prints on a terminal: its own time."""
    pid, fd = pty.fork()
    if pid == 0:
        os.execv(binary, [binary, "embed", str(folder), "--device", "cuda", "-i", str(folder / f"texts{count}"), "-o",
                          str(folder / f"out{count}.npy"), *more])
    said = b""
    while True:
        try:
            piece = os.read(fd, 4096)
        except OSError:  # the terminal is gone
            break
        said += piece
    os.waitpid(pid, 0)
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", said.decode()).replace("\r", "\n").strip().splitlines()[-1]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--binary", default=str(ROOT / "build/cuda-release/warprow"))
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("more", nargs="*")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        folder = Path(work)
        texts = write_model(folder)
        print(torch.cuda.get_device_name(0), "sentence-transformers", sentence_transformers.__version__)
        model = sentence_transformers.SentenceTransformer(str(folder), device="cuda", model_kwargs={"dtype": torch.bfloat16})
        model.max_seq_length = 256
        for _ in range(args.rounds):
            for count in COUNTS:
                print("warprow:", ours(args.binary, folder, count, args.more), flush=True)
            for count, batch in ((512, 32), (512, 128), (512, 512), (4096, 128)):
                for _ in range(2):
                    start = time.perf_counter()
                    vectors = model.encode(texts[:count], batch_size=batch, show_progress_bar=False)
                    took = time.perf_counter() - start
                print(f"sentence-transformers: {count} texts in batches of {batch} in {took:.3f} s, {count * 256 / took:.0f} tokens/s",
                      flush=True)
        mine = np.load(folder / "out4096.npy")
        cosines = (mine * vectors).sum(1) / np.linalg.norm(mine, axis=1) / np.linalg.norm(vectors, axis=1)
        print(f"least cosine of the vectors: {cosines.min():.6f}")


if __name__ == "__main__":
    main()
