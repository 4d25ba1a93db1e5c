"""How often verify.py reads a key or a note of a log that rotated its key n times:
a few times for each, whatever n is. rotated.py VERIFY.PY"""

import base64
import hashlib
import importlib.util
import sys

spec = importlib.util.spec_from_file_location("verify", sys.argv[1])
verify = importlib.util.module_from_spec(spec)
spec.loader.exec_module(verify)

ORIGIN, ROOT = "example.org/log", b"r" * 32
asked = 0


def counted(read):
    def call(*args):
        global asked
        asked += 1
        return read(*args)
    return call


verify.read_vkey = counted(verify.read_vkey)
verify.read_checkpoint = counted(verify.read_checkpoint)
verify.ed25519_verify = lambda *_: True  # slow, and not what is counted


def key(n):
    raw = b"\1" + hashlib.sha256(str(n).encode()).digest()
    key_id = hashlib.sha256(ORIGIN.encode() + b"\n" + raw).digest()[:4]
    return f"{ORIGIN}+{key_id.hex()}+{base64.b64encode(raw).decode()}", key_id


def note(size, *by):
    lines = "".join(f"\u2014 {ORIGIN} {base64.b64encode(key(n)[1] + bytes(64)).decode()}\n" for n in by)
    return f"{ORIGIN}\n{size}\n{base64.b64encode(ROOT).decode()}\n\n{lines}"


def log(n):
    keys = verify.Keys()
    keys.first(key(1)[0])
    for i in range(2, n + 1):
        at = 2 * i - 2
        keys.take({"seq": at, "type": "key.rotated", "body": {"key": "checkpoint", "number": i, "public_key": key(i)[0]}}, ORIGIN)
        keys.roots[at] = ROOT
        keys.take({"seq": at + 1, "type": "key.retired", "body": {"key": "checkpoint", "number": i - 1, "checkpoint": note(at, i - 1, i)}}, ORIGIN)
    return keys


def refused(keys, *signed):
    try:
        keys.open(note(*signed).encode())
    except verify.Fault:
        return
    sys.exit(f"taken: size and keys {signed}")


for n in (2, 20, 400):
    keys, asked = log(n), 0
    keys.check(ORIGIN)
    if asked > 20 * n:
        sys.exit(f"{n} keys: {asked} readings")

keys = log(9)
for size in range(1, 18):
    newest, both = size // 2 + 1, size > 1 and size % 2 == 0
    by = [newest, newest - 1] if both else [newest]
    keys.open(note(size, *by).encode())
    for n in range(1, 10):
        if n not in by:
            refused(keys, size, *by, n)
            refused(keys, size, n)
    if both:
        refused(keys, size, newest)
        refused(keys, size, newest - 1)
