# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of SmolLM2's weights in other formats. The weights are those of the default model, a Q4_1 file: its exact
values are the reference."""

import json
import struct
from dataclasses import dataclass, field
from functools import partial

import formats
import gguf
import numpy as np
from llama64 import Fitting

LAYER = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "attn_q": "self_attn.q_proj",
         "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
         "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
K_QUANTS = ("Q4_K", "Q6_K")
TIED_HEAD = "model.embed_tokens.weight"
CALIBRATION_LENGTH = 1024  # tokens of a text
TOP = {"token_embd.weight": TIED_HEAD, "output_norm.weight": "model.norm.weight"}


@dataclass
class Weights:
    config: dict
    tensors: dict = field(default_factory=dict)  # Hugging Face's names, float32 or float64
    tokens: list = field(default_factory=list)  # as the vocabulary spells them


def hf_name(name):
    if name in TOP:
        return TOP[name]
    _, layer, kind, _ = name.split(".")
    return f"model.layers.{layer}.{LAYER[kind]}.weight"


def heads_of(name, config):
    """Of matrices whose rows GGUF holds as pairs."""
    return {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}.get(name.split(".")[-2])


def read_gguf(path):
    reader = gguf.GGUFReader(path)

    def value(key):
        return reader.fields["llama." + key].contents()

    out = Weights({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu",
                   "hidden_size": value("embedding_length"), "intermediate_size": value("feed_forward_length"),
                   "num_hidden_layers": value("block_count"), "num_attention_heads": value("attention.head_count"),
                   "num_key_value_heads": value("attention.head_count_kv"), "max_position_embeddings": value("context_length"),
                   "rms_norm_eps": float(value("attention.layer_norm_rms_epsilon")), "rope_theta": value("rope.freq_base"),
                   "vocab_size": value("vocab_size"), "tie_word_embeddings": True})
    out.tokens = reader.fields["tokenizer.ggml.tokens"].contents()
    for tensor in reader.tensors:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        name = hf_name(tensor.name)
        if heads := heads_of(name, out.config):
            values = values.reshape(heads, -1, 2, values.shape[1]).swapaxes(1, 2).reshape(values.shape)
        out.tensors[name] = values
    return out


def padded(weights):
    """The same function with 768 instead of 576 hidden elements and 12 heads instead of 9, since rows of K-quants are
    multiples of 256. What was added is zero and stays zero; norms allow for their longer rows."""
    config = weights.config
    heads, kv_heads, hidden = config["num_attention_heads"], config["num_key_value_heads"], config["hidden_size"]
    ratio = hidden / 768
    out = Weights(config | {"num_attention_heads": 12, "hidden_size": 768, "rms_norm_eps": config["rms_norm_eps"] * ratio})

    def more_heads(rows):
        groups = rows.reshape(kv_heads, heads // kv_heads, 64, -1)
        return np.pad(groups, ((0, 0), (0, 1), (0, 0), (0, 0))).reshape(768, -1)

    for name, tensor in weights.tensors.items():
        if tensor.ndim == 1:
            tensor = tensor * np.sqrt(ratio)
        elif "q_proj" in name:
            tensor = more_heads(tensor)
        elif "o_proj" in name:
            tensor = more_heads(tensor.T).T
        out.tensors[name] = np.pad(tensor, [(0, 768 - size if size == hidden else 0) for size in tensor.shape])
    return out


def bf16_bits(values):
    bits = values.astype(np.float32).view(np.uint32)
    return (bits + 0x7FFF + (bits >> 16 & 1) >> 16).astype(np.uint16)


def bf16_rounded(values):
    return (bf16_bits(values).astype(np.uint32) << 16).view(np.float32)


def write_tokenizer(folder, tokens):
    """Spells ids; prompts come as ids, so merges are not needed."""
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    model = {"type": "BPE", "vocab": {token: i for i, token in enumerate(tokens)}, "merges": []}
    (folder / "tokenizer.json").write_text(json.dumps({"version": "1.0", "added_tokens": [], "pre_tokenizer": level,
                                                       "decoder": level, "model": model}))


def write_safetensors(folder, weights, config, tensors):
    folder.mkdir(parents=True)
    write_tokenizer(folder, weights.tokens)
    header, at = {}, 0
    for name, (dtype, values) in tensors.items():
        header[name] = {"dtype": dtype, "shape": values.shape, "data_offsets": [at, at + values.nbytes]}
        at += values.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(folder / "model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, values in tensors.values():
            file.write(values.tobytes())
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def is_linear(name):
    return name.endswith("_proj.weight")


def write_plain(weights, folder, dtype):
    """F32 or BF16."""
    tensors, twin = {}, Weights(weights.config)
    for name, values in weights.tensors.items():
        tensors[name] = (dtype, values if dtype == "F32" else bf16_bits(values))
        twin.tensors[name] = values if dtype == "F32" else bf16_rounded(values)
    return write_safetensors(folder, weights, weights.config, tensors), twin


def write_quantised(weights, folder, quantise, quantization_config, calibration=None):
    """Linear layers quantised, the rest as it is in float32; and the values of all. With `calibration`, ids of texts,
    they are fitted to the inputs that they have there."""
    fitting = Fitting(weights.config, weights.tensors, quantise, CALIBRATION_LENGTH)
    if calibration is not None:
        fitting.hidden(calibration)
    config = weights.config | {"quantization_config": quantization_config}
    tensors, twin = {}, Weights(weights.config)
    for name, values in weights.tensors.items():
        if not is_linear(name):
            tensors[name] = ("F32", values)
            twin.tensors[name] = values
            continue
        stored = fitting.stored[name] if calibration is not None else quantise(values.astype(np.float64))
        tensors |= {name.removesuffix("weight") + suffix: tensor for suffix, tensor in stored.tensors.items()}
        twin.tensors[name] = stored.values
    return write_safetensors(folder, weights, config, tensors), twin


def compressed(form, weights, **group):
    return {"quant_method": "compressed-tensors", "format": form, "ignore": ["lm_head"],
            "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights, **group}}}


TOKEN_F8 = {"num_bits": 8, "type": "float", "strategy": "token", "dynamic": True, "symmetric": True}


def int_config(bits, group, has_zeros):
    return compressed("pack-quantized", {"num_bits": bits, "type": "int", "strategy": "group", "group_size": group,
                                         "symmetric": not has_zeros})


def write_gguf(weights, path, quantise, kind, source):
    """Linear layers in one type, embeddings in Q8_0 as in the source, whose metadata it takes; and the values of all."""
    if kind in K_QUANTS:
        weights = padded(weights)
    config, twin = weights.config, Weights(weights.config)
    path.parent.mkdir(parents=True, exist_ok=True)
    writer = gguf.GGUFWriter(path, "llama")
    changed = {"llama.embedding_length": config["hidden_size"], "llama.attention.head_count": config["num_attention_heads"],
               "llama.attention.layer_norm_rms_epsilon": config["rms_norm_eps"]}
    for key, entry in gguf.GGUFReader(source).fields.items():
        if key.startswith("GGUF.") or key == "general.architecture":
            continue
        types = entry.types
        writer.add_key_value(key, changed.get(key, entry.contents()), types[0], types[1] if len(types) > 1 else None)
    names = {hf: name for name, hf in TOP.items()}
    for name, values in weights.tensors.items():
        if name.startswith("model.layers."):
            _, _, layer, rest = name.split(".", 3)
            short = next(key for key, kind_of in LAYER.items() if kind_of == rest.removesuffix(".weight"))
            names[name] = f"blk.{layer}.{short}.weight"
        if values.ndim == 1:
            writer.add_tensor(names[name], values.astype(np.float32))
            twin.tensors[name] = values.astype(np.float32)
            continue
        in_type = kind if is_linear(name) else "Q8_0"
        data = (quantise if is_linear(name) else formats.q8_0)(values.astype(np.float64))
        twin.tensors[name] = gguf.quants.dequantize(data, gguf.GGMLQuantizationType[in_type])
        if heads := heads_of(name, config):
            data = np.ascontiguousarray(data.reshape(heads, 2, -1, data.shape[1]).swapaxes(1, 2).reshape(data.shape))
        writer.add_tensor(names[name], data, raw_dtype=gguf.GGMLQuantizationType[in_type])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path, twin


def writers(source, calibration):
    """Name: a function of the weights and a new folder that writes a checkpoint and returns its path and its values."""
    f8_blocks = {"quant_method": "fp8", "weight_block_size": [128, 128], "activation_scheme": "dynamic"}
    f8_rows = compressed("float-quantized", {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True},
                         input_activations=TOKEN_F8)
    i8 = {"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": True}
    i8_rows = compressed("int-quantized", i8)
    i8_tokens = compressed("int-quantized", i8, input_activations=i8 | {"strategy": "token", "dynamic": True})

    def integers(bits, group, has_zeros, **more):
        return partial(write_quantised, **more, quantise=partial(formats.int_groups, bits=bits, group=group, has_zeros=has_zeros),
                       quantization_config=int_config(bits, group, has_zeros))

    def in_gguf(quantise, kind):
        return lambda weights, folder: write_gguf(weights, folder / f"{kind}.gguf", quantise, kind, source)

    return {
        "f32": partial(write_plain, dtype="F32"),
        "bf16": partial(write_plain, dtype="BF16"),
        "fp8_block": partial(write_quantised, quantise=formats.f8_block, quantization_config=f8_blocks),
        "fp8_channel": partial(write_quantised, quantise=formats.f8_channel, quantization_config=f8_rows),
        "int8_channel": partial(write_quantised, quantise=formats.i8_channel, quantization_config=i8_rows),
        "int8_token": partial(write_quantised, quantise=formats.i8_channel, quantization_config=i8_tokens),
        "int8_g32": integers(8, 32, False),
        "int4_g32": integers(4, 32, False),
        "int4_g32_zeros": integers(4, 32, True),
        "int4_fitted": integers(4, 32, False, calibration=calibration),
        "int4_zeros_fitted": integers(4, 32, True, calibration=calibration),
        "q8_0": in_gguf(formats.q8_0, "Q8_0"),
        "q4_0": in_gguf(formats.q4_0, "Q4_0"),
        "q6_k": in_gguf(formats.q6_k, "Q6_K"),
        "q4_k": in_gguf(formats.q4_k, "Q4_K"),
    }
