#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Changes GGUF files for tests: splits them as llama-gguf-split does, or replaces the chat template."""

import struct

BYTES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}  # size of a value, by its type
STRING, ARRAY = 8, 9
USER_DEFINED = 4  # token type


def with_template(data, template, names=None):
    """The file with another chat template, no longer than the original, and with shorter token names, {id: (old, new)}. Those
    tokens become text."""
    room = 0
    for token, (old, new) in (names or {}).items():
        data = data.replace(struct.pack("<Q", len(old)) + old, struct.pack("<Q", len(new)) + new, 1)
        room += len(old) - len(new)
        key = b"tokenizer.ggml.token_type"
        at = data.index(key) + len(key) + 16 + 4 * token
        data = data[:at] + struct.pack("<i", USER_DEFINED) + data[at + 4:]
    key = b"tokenizer.chat_template"
    at = data.index(key) + len(key) + 4
    length = int.from_bytes(data[at:at + 8], "little")
    room += length  # keeps the offsets of everything after it
    padding = room - len(template) - 4
    if padding < 0:
        raise ValueError(f"the template has {len(template)} bytes; at most {room - 4} fit")
    return data[:at] + struct.pack("<Q", room) + (template + "{#" + " " * padding + "#}").encode() + data[at + 8 + length:]


def split_gguf(data):
    """The parts that llama-gguf-split makes of a file: the first with only the metadata, two with half of the tensors each."""
    at = 24

    def take(form):
        nonlocal at
        value = struct.unpack_from("<" + form, data, at)[0]
        at += struct.calcsize("<" + form)
        return value

    def skip(count):
        nonlocal at
        at += count

    def skip_value(kind):
        if kind == STRING:
            skip(take("Q"))
        elif kind == ARRAY:
            element, count = take("I"), take("Q")
            if element in BYTES:
                skip(count * BYTES[element])
            else:
                for _ in range(count):
                    skip_value(element)
        else:
            skip(BYTES[kind])

    num_tensors, num_values = struct.unpack_from("<QQ", data, 8)
    for _ in range(num_values):
        skip(take("Q"))
        skip_value(take("I"))
    values, tensors = data[24:at], []
    for _ in range(num_tensors):
        begin = at
        skip(take("Q"))
        skip(8 * take("I") + 4)
        tensors.append((data[begin:at], take("Q")))
    base = -(-at // 32) * 32
    offsets = sorted(offset for _, offset in tensors)
    ends = dict(zip(offsets, offsets[1:] + [len(data) - base]))

    def part(number, values, num_values, chosen):
        def entry(key, kind, value):
            return struct.pack("<Q", len(key)) + key + struct.pack("<I", kind) + value
        values += entry(b"split.no", 2, struct.pack("<H", number)) + entry(b"split.count", 2, struct.pack("<H", 3))
        values += entry(b"split.tensors.count", 5, struct.pack("<i", num_tensors))
        head, body = data[:8] + struct.pack("<QQ", len(chosen), num_values + 3) + values, b""
        for info, offset in chosen:
            head += info + struct.pack("<Q", len(body))
            piece = data[base + offset:base + ends[offset]]
            body += piece + b"\0" * (-len(piece) % 32)
        return head + b"\0" * (-len(head) % 32) + body

    half = num_tensors // 2
    return [part(0, values, num_values, []), part(1, b"", 0, tensors[:half]), part(2, b"", 0, tensors[half:])]
