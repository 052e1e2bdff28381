# SPDX-License-Identifier: Apache-2.0
"""Quantisers of weight matrices [outputs, inputs]: what a checkpoint stores, and the values that it stands for.

Types of 4 and 6 bits search for the scale with the least squared error of a group's weights. Only int_groups can look at
activations, which loses less.
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


def f8_of_rows(weight, round_scales):
    scales = round_scales(nonzero(np.abs(weight).max(1, keepdims=True) / F8_MAX).astype(np.float32))
    return f8_with(weight, scales.astype(np.float64), "weight_scale", scales)


def f8_channel(weight):
    return f8_of_rows(weight, lambda scales: scales)


def f8_at_load(weight):
    """What --quantization fp8 makes while loading: scales are rounded up to bf16."""
    return f8_of_rows(weight, lambda scales: ((scales.view(np.uint32) + 0xFFFF) & 0xFFFF0000).view(np.float32))


def i8_channel(weight):
    scales = nonzero(np.abs(weight).max(1, keepdims=True) / 127).astype(np.float32)
    numbers = np.rint(weight / scales)
    return Stored({"weight": ("I8", numbers.astype(np.int8)), "weight_scale": ("F32", scales)},
                  numbers * scales.astype(np.float64))


def i8_groups(weight):
    """What --quantization int8 makes while loading: the largest magnitude of 32 inputs is the number 127."""
    groups = weight.astype(np.float32).reshape(weight.shape[0], -1, 32)
    scales = (np.abs(groups).max(-1, keepdims=True) / np.float32(127)).astype(np.float16).astype(np.float32)
    numbers = np.clip(np.rint(groups / nonzero(scales)), -127, 127)
    return Stored({}, (numbers * scales).reshape(weight.shape))


def packed(numbers, bits):
    """Numbers side by side in words of 32 bits, the first lowest, along the last axis."""
    per_word = 32 // bits
    words = numbers.astype(np.uint32).reshape(*numbers.shape[:-1], -1, per_word)
    shifts = np.arange(per_word, dtype=np.uint32) * np.uint32(bits)
    return np.bitwise_or.reduce(words << shifts, axis=-1).view(np.int32)


class Search:
    """Of several ways to store groups, those with the least squared error, for each group its own."""

    def __init__(self, groups):
        self.groups, self.error, self.parts = groups, None, ()

    def consider(self, values, *parts):
        """Parts have as many axes as the groups; one element stands for a group or for each of its inputs."""
        error = ((self.groups - values) ** 2).sum(-1, keepdims=True)
        if self.error is None:
            self.error, self.parts = error, parts
            return
        better = error < self.error
        self.error = np.where(better, error, self.error)
        self.parts = tuple(np.where(better, new, old) for new, old in zip(parts, self.parts))


def best_range(groups, bits, has_zeros):
    """Scales (halves) and zero points: of some ranges, the whole one, narrower ones and wider ones, the best."""
    top = 2**bits - 1
    largest = np.maximum(groups.max(-1, keepdims=True), 0)
    smallest = np.minimum(groups.min(-1, keepdims=True), 0)
    span = largest - smallest if has_zeros else 2 * np.maximum(largest, -smallest)
    search = Search(groups)
    for part in np.linspace(0.7, 1.1, 17):
        scales = nonzero((span * np.float32(part / top)).astype(np.float16)).astype(np.float32)
        zeros = np.clip(np.rint(-smallest / scales), 0, top) if has_zeros else np.full_like(scales, (top + 1) / 2)
        search.consider((in_range(groups, scales, zeros, top) - zeros) * scales, scales, zeros)
    return search.parts


def in_range(groups, scales, zeros, top):
    return np.clip(np.rint(groups / scales) + zeros, 0, top)


def int_groups(weight, bits, group, has_zeros, products=None):
    """compressed-tensors' pack-quantized. With `products`, the inputs' own [inputs, inputs], as GPTQ does: what one input's
    rounding gets wrong, the weights of the inputs after it make up for, as far as they go together."""
    rows, cols = weight.shape
    groups = weight.astype(np.float32).reshape(rows, -1, group)
    if products is None:
        scales, zeros = best_range(groups, bits, has_zeros)
        numbers = in_range(groups, scales, zeros, 2**bits - 1)
    else:
        scales, zeros, numbers = fed_back(groups, bits, has_zeros, products)
    tensors = {"weight_packed": ("I32", packed(numbers.reshape(rows, cols), bits)),
               "weight_scale": ("F16", scales[..., 0].astype(np.float16)),
               "weight_shape": ("I64", np.array([rows, cols]))}
    if has_zeros:
        tensors["weight_zero_point"] = ("I32", packed(np.ascontiguousarray(zeros[..., 0].T), bits).T.copy())
    return Stored(tensors, ((numbers - zeros) * scales).reshape(rows, cols))  # exact: 8 bits times 11


def fed_back(groups, bits, has_zeros, products):
    rows, num_groups, group = groups.shape
    cols = num_groups * group
    damped = products + 0.01 * np.diag(products).mean() * np.eye(cols)
    influence = np.linalg.cholesky(np.linalg.inv(damped)).T
    left = groups.reshape(rows, cols).astype(np.float64)
    scales, zeros = np.empty((rows, num_groups, 1), np.float32), np.empty((rows, num_groups, 1), np.float32)
    numbers = np.empty(groups.shape, np.float32)
    for g in range(num_groups):
        now, then = slice(g * group, (g + 1) * group), slice((g + 1) * group, cols)
        scales[:, g], zeros[:, g] = best_range(left[:, now].astype(np.float32), bits, has_zeros)
        errors = np.empty((rows, group))
        for i in range(group):
            col = g * group + i
            column = left[:, col:col + 1]
            numbers[:, g, i:i + 1] = in_range(column, scales[:, g], zeros[:, g], 2**bits - 1)
            errors[:, i:i + 1] = (column - (numbers[:, g, i:i + 1] - zeros[:, g]) * scales[:, g]) / influence[col, col]
            left[:, col + 1:now.stop] -= errors[:, i:i + 1] * influence[col, col + 1:now.stop]
        left[:, then] -= errors @ influence[now, then]
    return scales, zeros, numbers


# GGUF: bytes of whole rows. What they stand for is read from them by the gguf package.


def halves(values):
    return values.astype(np.float16).view(np.uint8).reshape(len(values), 2)


def q8_0(weight):
    blocks = weight.reshape(-1, 32)
    scales = (np.abs(blocks).max(1, keepdims=True) / 127).astype(np.float16)
    numbers = np.clip(np.rint(blocks / nonzero(scales.astype(np.float64))), -127, 127).astype(np.int8)
    return np.concatenate([halves(scales), numbers.view(np.uint8)], 1).reshape(len(weight), -1)


def q4_0(weight):
    """Numbers from -8 to 7. The element of the largest magnitude is about -8 steps, or fewer or more if that fits better."""
    groups = weight.astype(np.float32).reshape(-1, 32)
    extreme = np.take_along_axis(groups, np.abs(groups).argmax(1)[:, None], 1)
    search = Search(groups)
    for steps in np.linspace(-9, -6, 16):
        scales = (extreme / np.float32(steps)).astype(np.float16).astype(np.float32)
        numbers = np.clip(np.rint(groups / nonzero(scales)), -8, 7)
        search.consider(numbers * scales, scales, numbers)
    scales, numbers = search.parts
    numbers = (numbers + 8).astype(np.uint8)
    return np.concatenate([halves(scales), numbers[:, :16] | numbers[:, 16:] << 4], 1).reshape(len(weight), -1)


def line_fits(groups, numbers):
    """The scale and minimum with the least squared error for these numbers; where there are none, a scale of 0."""
    mean_number, mean = numbers.mean(-1, keepdims=True), groups.mean(-1, keepdims=True)
    spread = ((numbers - mean_number) ** 2).sum(-1, keepdims=True)
    scales = ((numbers - mean_number) * groups).sum(-1, keepdims=True) / nonzero(spread)
    minima = scales * mean_number - mean
    without = (numbers * groups).sum(-1, keepdims=True) / nonzero((numbers**2).sum(-1, keepdims=True))
    return np.maximum(np.where(minima < 0, without, scales), 0), np.maximum(minima, 0)


def six_bits(values):
    """The largest of a block over 63, and each value in such steps."""
    whole = (values.max(1, keepdims=True) / 63).astype(np.float16)
    return whole, np.clip(np.rint(values / nonzero(whole.astype(np.float64))), 0, 63).astype(np.uint8)


def q4_k(weight):
    """256 inputs of 8 groups: numbers of 4 bits, a scale and a minimum of 6 bits for a group. A group tries several
    ranges and the best line through the numbers of each."""
    groups = weight.astype(np.float32).reshape(-1, 8, 32)
    low = np.minimum(groups.min(-1, keepdims=True), 0)
    span = np.maximum(groups.max(-1, keepdims=True), 0) - low
    search = Search(groups)
    for top in np.linspace(13.5, 16.5, 9):
        numbers = np.clip(np.rint((groups - low) * (np.float32(top) / nonzero(span))), 0, 15)
        scales, minima = line_fits(groups, numbers)
        search.consider(numbers * scales - minima, scales, minima)
    scales, minima = (part[..., 0] for part in search.parts)
    d, scale6 = six_bits(scales)
    d_min, min6 = six_bits(minima)
    scales = (d.astype(np.float64) * scale6)[..., None]
    minima = (d_min.astype(np.float64) * min6)[..., None]
    numbers = np.clip(np.rint((groups + minima) / nonzero(scales)), 0, 15).astype(np.uint8)
    fields = np.concatenate([scale6[:, :4] | scale6[:, 4:] >> 4 << 6, min6[:, :4] | min6[:, 4:] >> 4 << 6,
                             (scale6[:, 4:] & 15) | (min6[:, 4:] & 15) << 4], 1)
    nibbles = (numbers[:, 0::2] | numbers[:, 1::2] << 4).reshape(-1, 128)
    return np.concatenate([halves(d), halves(d_min), fields, nibbles], 1).reshape(len(weight), -1)


def q6_k(weight):
    """256 inputs of 16 groups: numbers of 6 bits, a signed scale of 8 bits for a group."""
    blocks = weight.astype(np.float32).reshape(-1, 16, 16)
    search = Search(blocks)
    for top in np.linspace(29, 33, 9):
        scales = np.abs(blocks).max(-1, keepdims=True) / np.float32(top)
        search.consider(np.clip(np.rint(blocks / nonzero(scales)), -32, 31) * scales, scales)
    scales = search.parts[0][..., 0]
    d = (scales.max(1, keepdims=True) / 127).astype(np.float16)
    scale8 = np.rint(scales / nonzero(d.astype(np.float64))).astype(np.int8)
    steps = nonzero(d.astype(np.float64) * scale8)[..., None]
    numbers = (np.clip(np.rint(blocks / steps), -32, 31) + 32).astype(np.uint8).reshape(-1, 2, 4, 32)
    low, high = numbers & 15, numbers >> 4
    four = np.concatenate([low[:, :, 0] | low[:, :, 2] << 4, low[:, :, 1] | low[:, :, 3] << 4], -1).reshape(-1, 128)
    two = (high[:, :, 0] | high[:, :, 1] << 2 | high[:, :, 2] << 4 | high[:, :, 3] << 6).reshape(-1, 64)
    return np.concatenate([four, two, scale8.view(np.uint8), halves(d)], 1).reshape(len(weight), -1)
