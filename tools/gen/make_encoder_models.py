#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes tiny random encoders with Hugging Face transformers, and their vectors, as golden data for tests/golden.

usage: make_encoder_models.py FOLDER   (needs torch, transformers and tokenizers; writes one folder per model)

Each folder holds config.json, model.safetensors (bf16, computed in float32), tokenizer.json, what sentence-transformers
writes beside a model, and golden.json:
  prompts[].ids, .types (0 or 1 for each id, if not all are 0), .text (a string, or two of a pair, if ids are their
  tokens), .vector (the model's answer).
transformers has no model in the form in which nomic-bert is published: nomic_hidden is our reading of its definition. With the same
weights under its own names transformers' NomicBertModel (5.17) gives these vectors within 2e-7.
"""
import json
import pathlib
import sys
import zlib

import torch
import transformers
from make_pooling_models import module, pooling, write
from safetensors.torch import save_file
from tokenizers import Tokenizer

LENGTHS = (1, 2, 9, 47, 64)
TEXTS = ("Hello, world!", "it's 2026: caf\u00e9 and zebra", ("what is a cat", "A cat is an animal."))
SMALL = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=56, vocab_size=128)


def wordpiece_vocab():
    letters = [chr(code) for code in range(ord("a"), ord("z") + 1)]
    words = ["hello", "world", "cat", "is", "what", "##mal", "an", "##ra", "the", "20", "##26"]
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words, *letters, *("##" + text for text in letters),
              *"!,.:'?", *"0123456789", *("##" + text for text in "0123456789")]
    assert len(tokens) <= SMALL["vocab_size"], len(tokens)
    return tokens


def special(i, text):
    return {"id": i, "content": text, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
            "special": True}


def wordpiece():
    """As bert-base-uncased's."""
    tokens = wordpiece_vocab()
    first, last = {"SpecialToken": {"id": "[CLS]", "type_id": 0}}, {"SpecialToken": {"id": "[SEP]", "type_id": 0}}
    a, b = {"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}
    named = {text: {"id": text, "ids": [tokens.index(text)], "tokens": [text]} for text in ("[CLS]", "[SEP]")}
    return {
        "version": "1.0", "added_tokens": [special(i, text) for i, text in enumerate(tokens[:5])],
        "normalizer": {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True, "strip_accents": None,
                       "lowercase": True},
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {"type": "TemplateProcessing", "single": [first, a, last],
                           "pair": [first, a, last, b, {"SpecialToken": {"id": "[SEP]", "type_id": 1}}],
                           "special_tokens": named},
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
                  "max_input_chars_per_word": 100, "vocab": {text: i for i, text in enumerate(tokens)}}}


def unigram():
    """As xlm-roberta-base's, without its table of characters."""
    letters = [chr(code) for code in range(ord("a"), ord("z") + 1)]
    words = ["\u2581hello", "\u2581world", "\u2581cat", "\u2581is", "\u2581what", "mal", "\u2581an", "ra", "\u2581A", "\u2581H"]
    pieces = [["<s>", 0.0], ["<pad>", 0.0], ["</s>", 0.0], ["<unk>", 0.0],
              *([text, -3.0 - 0.1 * i] for i, text in enumerate(words)),
              *([text, -6.0 - 0.05 * i] for i, text in enumerate(["\u2581", *letters, *"!,.:'?", *"0123456789"]))]
    pieces.append(["<mask>", 0.0])
    begin, end = {"SpecialToken": {"id": "<s>", "type_id": 0}}, {"SpecialToken": {"id": "</s>", "type_id": 0}}
    a, b = {"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}
    named = {text: {"id": text, "ids": [i], "tokens": [text]} for i, text in ((0, "<s>"), (2, "</s>"))}
    metaspace = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always", "split": True}
    return {
        "version": "1.0",
        "added_tokens": [special(i, pieces[i][0]) for i in (0, 1, 2, 3, len(pieces) - 1)],
        "normalizer": None, "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, metaspace]},
        "post_processor": {"type": "TemplateProcessing", "single": [begin, a, end],
                           "pair": [begin, a, end, end, b, end], "special_tokens": named},
        "decoder": metaspace, "model": {"type": "Unigram", "unk_id": 3, "vocab": pieces, "byte_fallback": False}}


class Nomic(torch.nn.Module):
    """nomic-bert as published: rope on all of a head, gated feed-forward fc11(x) * silu(fc12(x)), norms behind."""

    def __init__(self):
        super().__init__()
        width, inner = SMALL["hidden_size"], SMALL["intermediate_size"]
        linear = lambda outputs, inputs: torch.nn.Linear(inputs, outputs, bias=False)
        norm = lambda: torch.nn.LayerNorm(width, eps=1e-12)
        self.embeddings = torch.nn.ModuleDict({"word_embeddings": torch.nn.Embedding(SMALL["vocab_size"], width),
                                               "token_type_embeddings": torch.nn.Embedding(2, width)})
        self.emb_ln = norm()
        layer = lambda: torch.nn.ModuleDict({
            "attn": torch.nn.ModuleDict({"Wqkv": linear(3 * width, width), "out_proj": linear(width, width)}),
            "norm1": norm(), "norm2": norm(),
            "mlp": torch.nn.ModuleDict({"fc11": linear(inner, width), "fc12": linear(inner, width), "fc2": linear(width, inner)})})
        self.encoder = torch.nn.ModuleDict({"layers": torch.nn.ModuleList(layer() for _ in range(SMALL["num_hidden_layers"]))})

    def nomic_hidden(self, ids, types):
        heads, size = SMALL["num_attention_heads"], SMALL["hidden_size"] // SMALL["num_attention_heads"]
        angles = torch.outer(torch.arange(len(ids)).float(), 1000.0 ** (-torch.arange(0, size, 2).float() / size))
        cos, sin = angles.cos()[:, None], angles.sin()[:, None]

        def rotate(x):
            a, b = x[..., :size // 2], x[..., size // 2:]
            return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)

        x = self.emb_ln(self.embeddings["word_embeddings"](ids) + self.embeddings["token_type_embeddings"](types))
        for layer in self.encoder["layers"]:
            q, k, v = layer["attn"]["Wqkv"](x).view(len(ids), 3, heads, size).unbind(1)
            scores = torch.einsum("qhd,khd->hqk", rotate(q), rotate(k)) / size ** 0.5
            mixed = torch.einsum("hqk,khd->qhd", scores.softmax(-1), v).reshape(len(ids), -1)
            x = layer["norm1"](x + layer["attn"]["out_proj"](mixed))
            mlp = layer["mlp"]
            x = layer["norm2"](x + mlp["fc2"](mlp["fc11"](x) * torch.nn.functional.silu(mlp["fc12"](x))))
        return x

    def save_pretrained(self, folder):
        save_file({name: value.contiguous() for name, value in self.state_dict().items()}, folder / "model.safetensors")
        write(folder / "config.json", {
            "architectures": ["NomicBertModel"], "model_type": "nomic_bert", "activation_function": "swiglu", "causal": False,
            "layer_norm_epsilon": 1e-12, "mlp_fc1_bias": False, "mlp_fc2_bias": False, "n_embd": 32, "n_head": 4, "n_inner": 56,
            "n_layer": 2, "n_positions": 128, "prenorm": False, "qkv_proj_bias": False, "rotary_emb_base": 1000,
            "rotary_emb_fraction": 1.0, "rotary_emb_interleaved": False, "rotary_emb_scale_base": None,
            "type_vocab_size": 2, "use_rms_norm": False, "vocab_size": 128})


def models():
    bert = dict(SMALL, max_position_embeddings=80, type_vocab_size=2, attn_implementation="eager")
    xlmr = dict(bert, max_position_embeddings=66, type_vocab_size=1, bos_token_id=0, pad_token_id=1, eos_token_id=2)
    modern = dict(SMALL, num_hidden_layers=4, max_position_embeddings=96, local_attention=16, global_attn_every_n_layers=3,
                  pad_token_id=0, cls_token_id=2, sep_token_id=3, bos_token_id=2, eos_token_id=3, attn_implementation="eager")
    labels = dict(id2label={0: "bad", 1: "fair", 2: "good"}, label2id={"bad": 0, "fair": 1, "good": 2})
    one = dict(num_labels=1)
    t = transformers
    yield "embed_bert", t.BertModel(t.BertConfig(**bert))
    yield "classify_bert", t.BertForSequenceClassification(t.BertConfig(**bert, **labels))
    yield "embed_xlmr", t.XLMRobertaModel(t.XLMRobertaConfig(**xlmr))
    yield "rank_xlmr", t.XLMRobertaForSequenceClassification(t.XLMRobertaConfig(**xlmr, **one))
    yield "embed_modernbert", t.ModernBertModel(t.ModernBertConfig(**modern))
    yield "rank_modernbert", t.ModernBertForSequenceClassification(t.ModernBertConfig(**modern, classifier_pooling="mean", **one))
    yield "embed_nomic", Nomic()


def randomise(model, generator):
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        is_norm = "norm" in name.lower() or ".emb_ln" in name or name.startswith("emb_ln")
        value = 1.0 + 0.2 * noise if is_norm and name.endswith("weight") else (0.5 if "embeddings" in name else 0.25) * noise
        parameter.data = value.to(torch.bfloat16).to(torch.float32)


def sentence_files(name, folder):
    """What stands behind an embedder. Returns how a vector follows from hidden states."""
    modules = [module(0, "Transformer", ""), module(1, "Pooling", "1_Pooling"), module(2, "Normalize", "2_Normalize")]
    first = name == "embed_xlmr"
    write(folder / "1_Pooling/config.json", pooling(SMALL["hidden_size"], "cls_token" if first else "mean_tokens"))
    write(folder / "modules.json", modules)
    if name == "embed_bert":
        write(folder / "sentence_bert_config.json", {"max_seq_length": 64, "do_lower_case": False})
    return lambda hidden: torch.nn.functional.normalize(hidden[0] if first else hidden.mean(0), dim=0)


def answer(name, model, ids, types):
    """The last hidden states of an embedder, else the probabilities of classes."""
    if name == "embed_nomic":
        return model.nomic_hidden(torch.tensor(ids), torch.tensor(types))
    arguments = {"input_ids": torch.tensor([ids]), "attention_mask": torch.ones(1, len(ids), dtype=torch.long)}
    if "modernbert" not in name:
        arguments["token_type_ids"] = torch.tensor([types])
    if name.startswith("embed"):
        return model(**arguments).last_hidden_state[0].float()
    logits = model(**arguments).logits[0].float()
    return torch.sigmoid(logits) if len(logits) == 1 else torch.softmax(logits, 0)


@torch.no_grad()
def main():
    torch.set_num_threads(1)
    for name, model in models():
        generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
        model.eval()
        randomise(model, generator)
        folder = pathlib.Path(sys.argv[1]) / name
        folder.mkdir(parents=True, exist_ok=True)
        vector_of = sentence_files(name, folder) if name.startswith("embed") else (lambda values: values)
        described = unigram() if "xlmr" in name else wordpiece()
        tokenizer = Tokenizer.from_str(json.dumps(described))
        prompts = []
        for length in LENGTHS:
            ids = torch.randint(5, 90, (length,), generator=generator).tolist()
            prompts.append({"ids": ids})
        for text in TEXTS:
            encoded = tokenizer.encode(*text) if isinstance(text, tuple) else tokenizer.encode(text)
            prompts.append({"text": text, "ids": encoded.ids, "types": encoded.type_ids})
        for prompt in prompts:
            types = prompt.get("types", [0] * len(prompt["ids"]))
            vector = vector_of(answer(name, model, prompt["ids"], types))
            prompt["vector"] = [round(float(v), 7) for v in vector]
            if not any(types):
                prompt.pop("types", None)
        golden = {"made_with": {"torch": torch.__version__, "transformers": transformers.__version__}, "prompts": prompts}
        model.to(torch.bfloat16).save_pretrained(folder)
        (folder / "golden.json").write_text(json.dumps(golden, separators=(",", ":")) + "\n")
        (folder / "tokenizer.json").write_text(json.dumps(described, separators=(",", ":")) + "\n")
        if "bert" in name and "modern" not in name:
            (folder / "vocab.txt").write_text("\n".join(wordpiece_vocab()) + "\n")
        print(name, sum(p.numel() for p in model.parameters()), prompts[1]["vector"][:4], prompts[-1]["ids"])


if __name__ == "__main__":
    main()
