"""ENCODING_INT8: eight bits an element, one scale for each head."""

import math
import struct


def _single(x):
    """x rounded to single precision, to nearest, half to even."""
    return struct.unpack("<f", struct.pack("<f", x))[0]


def _bf16(bits):
    return struct.unpack("<f", struct.pack("<I", bits << 16))[0]


def _code(x, inverse):
    if math.isnan(x):
        return 0
    if math.isinf(x):
        return 127 if x > 0 else -127
    return round(_single(x * inverse))  # half to even


def encode(page_slice, kv_heads):
    """One slice of bf16 elements, encoded."""
    elements = [_bf16(bits) for (bits,) in struct.iter_unpack("<H", page_slice)]
    size = len(elements) // (2 * kv_heads)
    scales, codes = b"", b""
    for first in range(0, len(elements), size):
        head = elements[first : first + size]
        largest = max((abs(x) for x in head if math.isfinite(x)), default=0.0)
        if largest < 2.0**-100:
            scales += struct.pack("<f", 0)
            codes += bytes(size)
            continue
        inverse = _single(127 / largest)
        scales += struct.pack("<f", _single(largest / 127))
        codes += struct.pack(f"<{size}b", *(_code(x, inverse) for x in head))
    return scales + codes


def decode(encoded, kv_heads):
    """One slice of bf16 elements."""
    heads = 2 * kv_heads
    scales = struct.unpack_from(f"<{heads}f", encoded)
    size = len(encoded) // heads - 4
    out = b""
    for head, scale in enumerate(scales):
        for code in struct.unpack_from(f"<{size}b", encoded, 4 * heads + head * size):
            (bits,) = struct.unpack("<I", struct.pack("<f", max(code, -127) * scale))
            out += struct.pack("<H", bits + 0x7FFF + (bits >> 16 & 1) >> 16)
    return out
