"""Reads W&B's offline files: a LevelDB log of protocol buffers behind a seven-byte header."""

import json
import struct
import time

BLOCK, HEADER, PREAMBLE = 32768, 7, 7
FULL, FIRST, MIDDLE, LAST = 1, 2, 3, 4


def _records(data):
    at, parts = PREAMBLE, []
    while at + HEADER <= len(data):
        left = BLOCK - at % BLOCK
        if left < HEADER:
            at += left
            continue
        _checksum, length, kind = struct.unpack("<IHB", data[at : at + HEADER])
        if kind == 0:
            break
        parts.append(data[at + HEADER : at + HEADER + length])
        at += HEADER + length
        if kind in (FULL, LAST):
            yield b"".join(parts)
            parts = []


def wandb_history(file, key):
    """Every value that was logged under a key, in order."""
    values = []
    for record in _written(file):
        for item in record.history.item:
            if key in (item.key, "/".join(item.nested_key)):
                values.append(json.loads(item.value_json))
    return values


def wandb_config(file):
    """The configuration, as its last updates left it."""
    config = {}
    for record in _written(file):
        updates = [*record.run.config.update, *record.config.update]
        config |= {item.key: json.loads(item.value_json) for item in updates if item.key}
    return config


def _written(file):
    from wandb.proto import wandb_internal_pb2

    size = -1
    for _ in range(60):  # another process of W&B writes the file, and may still be at it when `finish` returns
        size, before = file.stat().st_size, size
        if size == before:
            break
        time.sleep(0.5)
    for data in _records(file.read_bytes()):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        yield record
