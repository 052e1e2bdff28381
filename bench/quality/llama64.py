# SPDX-License-Identifier: Apache-2.0
"""A Llama in double precision, for the logprobs of whole texts. Nothing of it is fast."""

import numpy as np


def token_rounded(round_values, group=None):
    """Rounds inputs [tokens, inputs] with a scale for a token, or for each `group` of its inputs: the largest over 448."""

    def rounded(x):
        out = np.empty_like(x)
        for at in range(0, x.shape[1], group or x.shape[1]):
            part = x[:, at:at + (group or x.shape[1])]
            scales = np.abs(part).max(1, keepdims=True) / 448
            scales = np.where(scales == 0, 1, scales).astype(np.float32).astype(np.float64)
            out[:, at:at + part.shape[1]] = round_values(part / scales) * scales
        return out

    return rounded


def same(x):
    return x


class Llama64:
    def __init__(self, config, weights, round_inputs=same, round_cache=same):
        self.config, self.weights = config, weights
        self.round_inputs, self.round_cache = round_inputs, round_cache

    def weight(self, name):
        return self.weights[name].astype(np.float64)

    def norm(self, x, name):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + self.config["rms_norm_eps"]) * self.weight(name)

    def linear(self, x, name):
        return self.round_inputs(x) @ self.weight(name).T

    def rope(self, x):
        half = x.shape[-1] // 2
        angles = np.arange(len(x))[:, None] * self.config["rope_theta"] ** (-np.arange(half) / half)
        cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
        a, b = x[..., :half], x[..., half:]
        return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)

    def attend(self, x, layer):
        heads, kv_heads = self.config["num_attention_heads"], self.config["num_key_value_heads"]
        q, k, v = (self.linear(x, f"{layer}self_attn.{name}_proj.weight").reshape(len(x), count, -1)
                   for name, count in (("q", heads), ("k", kv_heads), ("v", kv_heads)))
        out = [self.attention(q[text], k[text], v[text]) for text in self.texts(len(x))]
        return self.linear(np.concatenate(out), f"{layer}self_attn.o_proj.weight")

    def texts(self, tokens):
        """The tokens that see one another."""
        return [slice(tokens)]

    def attention(self, q, k, v):
        q, k, v = self.rope(q), self.round_cache(self.rope(k)), self.round_cache(v)
        repeats = q.shape[1] // k.shape[1]
        k, v = k.repeat(repeats, 1), v.repeat(repeats, 1)
        scores = np.einsum("qhd,khd->hqk", q, k, optimize=True) / np.sqrt(q.shape[-1])
        scores = np.where(np.tri(len(q), dtype=bool), scores, -np.inf)
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        shares /= shares.sum(-1, keepdims=True)
        return np.einsum("hqk,khd->qhd", shares, v, optimize=True).reshape(len(q), -1)

    def hidden(self, ids):
        """[tokens, hidden size], before the last norm."""
        x = self.weight("model.embed_tokens.weight")[ids]
        for i in range(self.config["num_hidden_layers"]):
            layer = f"model.layers.{i}."
            x = x + self.attend(self.norm(x, layer + "input_layernorm.weight"), layer)
            h = self.norm(x, layer + "post_attention_layernorm.weight")
            gate = self.linear(h, layer + "mlp.gate_proj.weight")
            up = self.linear(h, layer + "mlp.up_proj.weight")
            x = x + self.linear(gate / (1 + np.exp(-gate)) * up, layer + "mlp.down_proj.weight")
        return x

    def logprobs(self, ids):
        """[tokens, vocabulary]: row i is of what follows ids[i]."""
        logits = self.norm(self.hidden(ids), "model.norm.weight") @ self.weight("model.embed_tokens.weight").T
        logits -= logits.max(-1, keepdims=True)
        return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


class Llama32(Llama64):
    """The same in single precision: how far from each other two right answers are."""

    def weight(self, name):
        return self.weights[name].astype(np.float32)

    def norm(self, x, name):
        return super().norm(x, name).astype(np.float32)

    def rope(self, x):
        return super().rope(x).astype(np.float32)


class Fitting(Llama64):
    """Quantises each matrix when its inputs are known, and goes on with what it became. Ids are texts of `length` tokens."""

    def __init__(self, config, weights, quantise, length):
        super().__init__(config, weights)
        self.quantise, self.length, self.stored = quantise, length, {}

    def texts(self, tokens):
        return [slice(first, first + self.length) for first in range(0, tokens, self.length)]

    def linear(self, x, name):
        self.stored[name] = self.quantise(self.weight(name), products=x.T @ x)
        return x @ self.stored[name].values.T.astype(np.float64)
