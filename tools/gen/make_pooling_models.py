#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes tiny random pooling models with Hugging Face transformers, and their vectors, as golden data for tests/golden.

usage: make_pooling_models.py FOLDER   (needs torch and transformers; writes one folder per model, for tests/golden/tiny)

Each folder holds config.json, model.safetensors (bf16, computed in float32), tokenizer.json, what sentence-transformers
writes beside a model, and golden.json:
  prompts[].ids, .hidden (the last hidden states, a row for each token), .vector (the model's answer).
"""
import json
import pathlib
import sys
import zlib

import torch
import transformers
from make_tiny_models import COMMON, randomise
from safetensors.torch import save_file

SPECIAL = ["<pad>", "<s>", "<eos>", "yes", "no"]
LENGTHS = (1, 7, 45)


def tokenizer(ends_with_eos):
    """One token for each printable ASCII character. GPT-2's byte-level alphabet has them as they are, but the space."""
    characters = ["\u0120"] + [chr(code) for code in range(0x21, 0x7F)]
    vocab = {text: i for i, text in enumerate(SPECIAL + characters)}
    added = [{"id": i, "content": text, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
              "special": text.startswith("<")} for i, text in enumerate(SPECIAL)]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    sequence = {"Sequence": {"id": "A", "type_id": 0}}
    eos = {"SpecialToken": {"id": "<eos>", "type_id": 0}}
    template = {"type": "TemplateProcessing", "single": [sequence, eos],
                "pair": [sequence, eos, {"Sequence": {"id": "B", "type_id": 1}}, eos],
                "special_tokens": {"<eos>": {"id": "<eos>", "ids": [2], "tokens": ["<eos>"]}}}
    return {"version": "1.0", "added_tokens": added, "pre_tokenizer": byte_level, "decoder": byte_level,
            "post_processor": template if ends_with_eos else None, "model": {"type": "BPE", "vocab": vocab, "merges": []}}


def module(index, name, path):
    return {"idx": index, "name": str(index), "path": path, "type": f"sentence_transformers.models.{name}"}


def pooling(width, flag):
    flags = ("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens", "weightedmean_tokens", "lasttoken")
    return {"word_embedding_dimension": width, **{f"pooling_mode_{name}": name == flag for name in flags},
            "include_prompt": True}


def models():
    small = dict(COMMON, hidden_size=32, intermediate_size=56, num_hidden_layers=2, pad_token_id=0,
                 num_attention_heads=4, num_key_value_heads=2)
    labels = dict(id2label={0: "bad", 1: "fair", 2: "good"}, label2id={"bad": 0, "fair": 1, "good": 2})
    yield "embed_qwen3", transformers.Qwen3Model(transformers.Qwen3Config(**small, head_dim=16))
    yield "embed_mistral", transformers.MistralModel(transformers.MistralConfig(**small, sliding_window=20))
    yield "classify_llama", transformers.LlamaForSequenceClassification(transformers.LlamaConfig(**small, **labels))
    yield "judge_qwen3", transformers.Qwen3ForCausalLM(transformers.Qwen3Config(
        **dict(small, max_position_embeddings=512), head_dim=16, tie_word_embeddings=True))


def hidden_states(model, ids):
    base = getattr(model, "model", model)
    return base(torch.tensor([ids]), use_cache=False).last_hidden_state[0].float()


def write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1) + "\n")


def sentence_files(name, folder, width, generator):
    """Writes what stands behind the model. Returns the vector of hidden states."""
    modules = [module(0, "Transformer", ""), module(1, "Pooling", "1_Pooling")]
    if name == "embed_qwen3":
        write(folder / "1_Pooling/config.json", pooling(width, "lasttoken"))
        write(folder / "modules.json", [*modules, module(2, "Normalize", "2_Normalize")])
        return lambda hidden: torch.nn.functional.normalize(hidden[-1], dim=0)
    weight = (0.3 * torch.randn((24, width), generator=generator)).to(torch.bfloat16)
    bias = (0.3 * torch.randn(24, generator=generator)).to(torch.bfloat16)
    write(folder / "1_Pooling/config.json", pooling(width, "mean_tokens"))
    write(folder / "2_Dense/config.json", {"in_features": width, "out_features": 24, "bias": True,
                                          "activation_function": "torch.nn.modules.activation.Tanh"})
    save_file({"linear.weight": weight, "linear.bias": bias}, folder / "2_Dense/model.safetensors")
    write(folder / "modules.json", [*modules, module(2, "Dense", "2_Dense")])
    write(folder / "sentence_bert_config.json", {"max_seq_length": 128, "do_lower_case": False})
    return lambda hidden: torch.tanh(weight.float() @ hidden.mean(0) + bias.float())


@torch.no_grad()
def main():
    torch.set_num_threads(1)
    for name, model in models():
        generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
        model.eval()
        randomise(model, generator)
        if name == "judge_qwen3":
            model.tie_weights()
        folder = pathlib.Path(sys.argv[1]) / name
        folder.mkdir(parents=True, exist_ok=True)
        if name.startswith("embed"):
            vector_of = sentence_files(name, folder, model.config.hidden_size, generator)
        elif name == "classify_llama":
            def vector_of(hidden, head=model.score):
                return torch.softmax(head(hidden[-1]), 0)
        else:
            def vector_of(hidden, head=model.lm_head):
                logits = head(hidden[-1])
                return torch.softmax(logits[[SPECIAL.index("no"), SPECIAL.index("yes")]], 0)[1:]
        prompts = []
        for length in LENGTHS:
            ids = torch.randint(5, 100, (length,), generator=generator).tolist()
            hidden = hidden_states(model, ids)
            if name == "classify_llama":
                whole = torch.softmax(model(torch.tensor([ids])).logits[0].float(), 0)
                assert torch.allclose(whole, vector_of(hidden), atol=1e-6)
            numbers = [[round(float(v), 6) for v in row] for row in hidden]
            prompts.append({"ids": ids, "hidden": numbers, "vector": [round(float(v), 7) for v in vector_of(hidden)]})
        golden = {"made_with": {"torch": torch.__version__, "transformers": transformers.__version__}, "prompts": prompts}
        model.to(torch.bfloat16).save_pretrained(folder)
        (folder / "generation_config.json").unlink(missing_ok=True)
        (folder / "golden.json").write_text(json.dumps(golden, separators=(",", ":")) + "\n")
        (folder / "tokenizer.json").write_text(json.dumps(tokenizer(name == "embed_qwen3"), separators=(",", ":")) + "\n")
        if name == "judge_qwen3":
            config = json.loads((folder / "config.json").read_text())
            write(folder / "config.json", config | {"classifier_from_token": ["no", "yes"]})
        print(name, sum(p.numel() for p in model.parameters()), prompts[1]["vector"][:4])


if __name__ == "__main__":
    main()
