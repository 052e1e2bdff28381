# SPDX-License-Identifier: Apache-2.0
"""Quantisers of weight matrices [outputs, inputs]: what a checkpoint stores, and the values that it stands for.

All fit a group's largest and smallest values, some with a search of their own; none looks at activations. Tools that do
(GPTQ, AWQ, importance matrices) lose less.
"""

from dataclasses import dataclass

import numpy as np

F8_MAX = 448.0


def f8_round(values):
    """The nearest e4m3 numbers, ties to even; magnitudes beyond 448 become 448."""
    values = np.clip(values, -F8_MAX, F8_MAX)
    exponents = np.maximum(np.frexp(values)[1] - 1, -6)
    steps = np.ldexp(1.0, exponents - 3)
    return np.rint(values / steps) * steps


def f8_e5m2_round(values):
    """As f8_round, with 2 bits of fraction; magnitudes beyond 57344 become that."""
    values = np.clip(values, -57344.0, 57344.0)
    steps = np.ldexp(1.0, np.maximum(np.frexp(values)[1] - 1, -14) - 2)
    return np.rint(values / steps) * steps


def f8_bits(rounded):
    magnitudes = np.abs(rounded)
    exponents = np.maximum(np.frexp(magnitudes)[1] - 1, -6)
    eighths = np.rint(magnitudes / np.ldexp(1.0, exponents - 3)).astype(np.int64)  # 8 to 15, less if subnormal
    codes = np.where(eighths < 8, eighths, (exponents + 7) * 8 + eighths - 8)
    return (codes + 128 * np.signbit(rounded)).astype(np.uint8)


def nonzero(steps):
    return np.where(steps == 0, 1, steps)


@dataclass
class Stored:
    tensors: dict  # suffix of the name: (dtype of safetensors, array)
    values: np.ndarray


def f8_with(weight, scales, key, stored_scales):
    rounded = f8_round(weight / scales)
    return Stored({"weight": ("F8_E4M3", f8_bits(rounded)), key: ("F32", stored_scales)}, rounded * scales)


def f8_block(weight):
    rows, cols = weight.shape
    padded = np.pad(weight, ((0, -rows % 128), (0, -cols % 128)))
    tiles = np.abs(padded).reshape(padded.shape[0] // 128, 128, -1, 128).max((1, 3))
    scales = nonzero(tiles / F8_MAX).astype(np.float32)
    spread = scales.astype(np.float64).repeat(128, 0).repeat(128, 1)[:rows, :cols]
    return f8_with(weight, spread, "weight_scale_inv", scales)


def f8_channel(weight):
    scales = nonzero(np.abs(weight).max(1, keepdims=True) / F8_MAX).astype(np.float32)
    return f8_with(weight, scales.astype(np.float64), "weight_scale", scales)


def i8_channel(weight):
    scales = nonzero(np.abs(weight).max(1, keepdims=True) / 127).astype(np.float32)
    numbers = np.rint(weight / scales)
    return Stored({"weight": ("I8", numbers.astype(np.int8)), "weight_scale": ("F32", scales)},
                  numbers * scales.astype(np.float64))


def packed(numbers, bits):
    """Numbers side by side in words of 32 bits, the first lowest, along the last axis."""
    per_word = 32 // bits
    words = numbers.astype(np.uint32).reshape(*numbers.shape[:-1], -1, per_word)
    shifts = np.arange(per_word, dtype=np.uint32) * np.uint32(bits)
    return np.bitwise_or.reduce(words << shifts, axis=-1).view(np.int32)


def int_groups(weight, bits, group, has_zeros):
    """compressed-tensors' pack-quantized. Of some ranges, the whole and narrower ones, a group takes that with the least
    squared error."""
    rows, cols = weight.shape
    top = 2**bits - 1
    blocks = weight.reshape(rows, -1, group)
    largest = np.maximum(blocks.max(-1, keepdims=True), 0)
    smallest = np.minimum(blocks.min(-1, keepdims=True), 0)
    span = largest - smallest if has_zeros else 2 * np.maximum(largest, -smallest)
    least = None
    for part in np.linspace(0.7, 1.05, 15):
        scales = nonzero((span * part / top).astype(np.float16)).astype(np.float64)
        zeros = np.clip(np.rint(-smallest * part / scales), 0, top) if has_zeros else np.full(scales.shape, (top + 1) / 2)
        numbers = np.clip(np.rint(blocks / scales) + zeros, 0, top)
        error = ((blocks - (numbers - zeros) * scales) ** 2).sum(-1, keepdims=True)
        if least is None:
            least = [error, scales, zeros, numbers]
            continue
        better = error < least[0]
        least = [np.where(better, new, old) for new, old in zip((error, scales, zeros, numbers), least)]
    _, scales, zeros, numbers = least
    tensors = {"weight_packed": ("I32", packed(numbers.reshape(rows, cols), bits)),
               "weight_scale": ("F16", scales[..., 0].astype(np.float16)),
               "weight_shape": ("I64", np.array([rows, cols]))}
    if has_zeros:
        tensors["weight_zero_point"] = ("I32", packed(np.ascontiguousarray(zeros[..., 0].T), bits).T.copy())
    return Stored(tensors, ((numbers - zeros) * scales).reshape(rows, cols))


# GGUF: bytes of whole rows. What they stand for is read from them by the gguf package.


def halves(values):
    return values.astype(np.float16).view(np.uint8).reshape(len(values), 2)


def q8_0(weight):
    blocks = weight.reshape(-1, 32)
    scales = (np.abs(blocks).max(1, keepdims=True) / 127).astype(np.float16)
    numbers = np.clip(np.rint(blocks / nonzero(scales.astype(np.float64))), -127, 127).astype(np.int8)
    return np.concatenate([halves(scales), numbers.view(np.uint8)], 1).reshape(len(weight), -1)


def q4_k(weight):
    """256 inputs of 8 groups: numbers of 4 bits, a scale and a minimum of 6 bits for a group. The range of a group, then
    once the best scale and minimum for its numbers."""
    blocks = weight.reshape(-1, 8, 32)
    low = np.minimum(blocks.min(-1), 0)
    scales, minima = (blocks.max(-1) - low) / 15, -low
    numbers = np.clip(np.rint((blocks + minima[..., None]) / nonzero(scales)[..., None]), 0, 15)
    numbers_mean, mean = numbers.mean(-1), blocks.mean(-1)
    spread = ((numbers - numbers_mean[..., None]) ** 2).sum(-1)
    fit = ((numbers - numbers_mean[..., None]) * blocks).sum(-1) / nonzero(spread)
    offset = fit * numbers_mean - mean
    fits = (spread > 0) & (fit > 0) & (offset >= 0)
    scales, minima = np.where(fits, fit, scales), np.where(fits, offset, minima)

    def six_bits(values):
        whole = (values.max(1, keepdims=True) / 63).astype(np.float16)
        return whole, np.clip(np.rint(values / nonzero(whole.astype(np.float64))), 0, 63).astype(np.uint8)

    d, scale6 = six_bits(scales)
    d_min, min6 = six_bits(minima)
    scales = d.astype(np.float64) * scale6
    minima = d_min.astype(np.float64) * min6
    numbers = np.clip(np.rint((blocks + minima[..., None]) / nonzero(scales)[..., None]), 0, 15).astype(np.uint8)
    fields = np.concatenate([scale6[:, :4] | scale6[:, 4:] >> 4 << 6, min6[:, :4] | min6[:, 4:] >> 4 << 6,
                             (scale6[:, 4:] & 15) | (min6[:, 4:] & 15) << 4], 1)
    nibbles = (numbers[:, 0::2] | numbers[:, 1::2] << 4).reshape(-1, 128)
    return np.concatenate([halves(d), halves(d_min), fields, nibbles], 1).reshape(len(weight), -1)


def q6_k(weight):
    """256 inputs of 16 groups: numbers of 6 bits, a signed scale of 8 bits for a group."""
    blocks = weight.reshape(-1, 16, 16)
    scales = np.abs(blocks).max(-1) / 31
    d = (scales.max(1, keepdims=True) / 127).astype(np.float16)
    scale8 = np.rint(scales / nonzero(d.astype(np.float64))).astype(np.int8)
    steps = nonzero(d.astype(np.float64) * scale8)[..., None]
    numbers = (np.clip(np.rint(blocks / steps), -32, 31) + 32).astype(np.uint8).reshape(-1, 2, 4, 32)
    low, high = numbers & 15, numbers >> 4
    four = np.concatenate([low[:, :, 0] | low[:, :, 2] << 4, low[:, :, 1] | low[:, :, 3] << 4], -1).reshape(-1, 128)
    two = (high[:, :, 0] | high[:, :, 1] << 2 | high[:, :, 2] << 4 | high[:, :, 3] << 6).reshape(-1, 64)
    return np.concatenate([four, two, scale8.view(np.uint8), halves(d)], 1).reshape(len(weight), -1)
