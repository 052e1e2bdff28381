#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes sentencepiece_vectors.json: small SentencePiece models, texts, and the ids that the sentencepiece package gives them.

    pip install sentencepiece protobuf; tests/text/make_sentencepiece_vectors.py

Each model is trained here on random words. Some differ from what the trainer makes: their message is changed before it is
stored (the flags of normalisation, a piece of type unused).
"""
import base64
import io
import json
import random
import tempfile
from pathlib import Path

import sentencepiece as spm
from sentencepiece import sentencepiece_model_pb2 as pb

HERE = Path(__file__).parent
SYLLABLES = ["ka", "lo", "mi", "ren", "tu", "sa", "vel", "or", "in", "é", "ß", "ng", "th", "wa", "zu", "日", "本", "語"]
TEXTS = [
    "", " ", "   ", "kalo miren", " kalo  miren ", "  tusa\tvelor\n\nin ", "日本語 kalo", "12.5 + 7 = 19.5!", "unseen: Ωж😀 x",
    "ΩΩΩ Ω", "<s> is text </s>", "a<0x41>b", "<0x0A>", "\u2581kalo\u2581", "＋Ａ①②ﬁ", "kalo<sep>miren <sep> tusa<sep>", "<sep><sep>",
    "kalo\r\nmiren\u00a0tusa", "e\u0301 é", "😀👍🏽", "lololololololololo", "x" * 40, "kalo" * 8 + " " + "miren" * 5, "\u3000kalo\u3000",
]
RULES = {"＋": "+", "Ａ": "A", "①": "1", "②": "(2)", "ﬁ": "fi", "e\u0301": "\u00e9", "\u3000": " ", "\u00a0": " ", "\t": " ", "\r\n": "\n"}


def corpus():
    rng = random.Random(7)
    words = ["".join(rng.choices(SYLLABLES, k=rng.randint(1, 4))) for _ in range(300)]
    for _ in range(2000):
        yield " ".join(rng.choices(words, k=rng.randint(3, 9))) + rng.choice([".", "!", " 12", " 7.5", ""])


def train(**options):
    out = io.BytesIO()
    with tempfile.TemporaryDirectory() as folder:
        if options.pop("rules", False):
            rules = Path(folder) / "rules.tsv"
            rules.write_text("".join(f"{' '.join(f'{ord(c):X}' for c in a)}\t{' '.join(f'{ord(c):X}' for c in b)}\n"
                                     for a, b in RULES.items()))
            options["normalization_rule_tsv"] = str(rules)
        else:
            options["normalization_rule_name"] = "identity"
        spm.SentencePieceTrainer.train(sentence_iterator=corpus(), model_writer=out, num_threads=1, minloglevel=2, **options)
    model = pb.ModelProto()
    model.ParseFromString(out.getvalue())
    model.trainer_spec.ClearField("input")
    return model


def unused(model, count):
    """Makes every third long piece unused."""
    long = [piece for piece in model.pieces if len(piece.piece) > 2 and piece.type == pb.ModelProto.SentencePiece.NORMAL]
    for piece in long[::3][:count]:
        piece.type = pb.ModelProto.SentencePiece.UNUSED
    return model


def models():
    small = {"vocab_size": 160, "character_coverage": 1.0}
    yield "bpe", train(model_type="bpe", byte_fallback=True, remove_extra_whitespaces=False, **(small | {"vocab_size": 420}))
    yield "bpe_no_bytes", train(model_type="bpe", split_digits=True, **small)
    yield "bpe_user_defined", train(model_type="bpe", byte_fallback=True, add_dummy_prefix=False, remove_extra_whitespaces=False,
                                    user_defined_symbols=["<sep>", "lolo", "\u2581\u2581"], **(small | {"vocab_size": 420}))
    yield "bpe_unused", unused(train(model_type="bpe", **small), 20)
    yield "unigram", train(model_type="unigram", **small)
    yield "unigram_bytes", train(model_type="unigram", byte_fallback=True, remove_extra_whitespaces=False,
                                 **(small | {"vocab_size": 400}))
    yield "unigram_rules", train(model_type="unigram", rules=True, user_defined_symbols=["<sep>", "lolo"], control_symbols=["<cls>"], **small)
    yield "bpe_rules", train(model_type="bpe", rules=True, byte_fallback=True, **(small | {"vocab_size": 420}))
    yield "unigram_unused", unused(train(model_type="unigram", **small), 20)


def main():
    out = {"texts": TEXTS, "models": {}}
    for name, model in models():
        data = model.SerializeToString(deterministic=True)
        processor = spm.SentencePieceProcessor(model_proto=data)
        ids = [processor.encode(text) for text in TEXTS]
        out["models"][name] = {
            "file": base64.b64encode(data).decode(), "vocab_size": processor.vocab_size(), "ids": ids,
            # Unknown characters are not restored, so these texts are left out where the vocabulary has no bytes.
            "decoded": [None if processor.unk_id() in each else processor.decode(each) for each in ids]}
        print(name, len(data), "bytes", processor.vocab_size(), "pieces")
    text = json.dumps(out, ensure_ascii=False, separators=(",", ":"))
    (HERE / "sentencepiece_vectors.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
