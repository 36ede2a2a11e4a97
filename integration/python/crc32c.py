"""CRC-32C (Castagnoli), and what of a message it is taken of."""

import struct


def _table():
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
        table.append(byte)
    return table


_TABLE = _table()


def crc32c(data, crc=0):
    """The CRC-32C of data, behind what crc is of."""
    crc ^= 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ _TABLE[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


def of_chunk(chunk):
    """The checksum of a Chunk: of its header and its payload."""
    header = struct.pack("<QIII", chunk.transfer_id, chunk.sequence, chunk.layer, len(chunk.runs))
    for run in chunk.runs:
        header += struct.pack("<II", run.first_block, run.blocks)
    return crc32c(chunk.payload, crc32c(header))


def of_commit(commit):
    """The checksum of a Commit."""
    tokens = commit.sampled_token_ids
    return crc32c(struct.pack(f"<QQII{len(tokens)}I", commit.transfer_id, commit.epoch, commit.chunks, len(tokens), *tokens))


assert crc32c(b"123456789") == 0xE3069283
