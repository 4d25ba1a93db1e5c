#!/usr/bin/env python3
"""Checks a ledgerd export: chain, tree, checkpoint and payloads; and receipts and
proofs without the log.

Written from docs/FORMAT.md alone, with the standard library alone, as a second
opinion on the verifier in Go. Section numbers below are that document's.

    verify.py EXPORT [--vkey KEY|@FILE] [--checkpoint FILE] [--receipt FILE]
    verify.py --receipt FILE --proof FILE --vkey KEY|@FILE [--event FILE] [--rotations FILE]
    verify.py --consistency FILE --checkpoint FILE --vkey KEY|@FILE [--rotations FILE]
    verify.py --vectors DIRECTORY

It names the first bad event and exits with 0 if every check asked for passed,
1 if one failed, 2 if one could not be done.
"""

import base64
import binascii
import bisect
import calendar
import hashlib
import json
import os
import re
import stat
import sys

INTEGER_MAX = 2**53 - 1
EVENT_MAX = 65535
ZEROS = "0" * 64


class Fault(Exception):
    """Something is wrong with the log. seq is 0 where no event is to blame."""

    def __init__(self, text, seq=0):
        super().__init__(text)
        self.seq = seq

    def __str__(self):
        where = f"seq {self.seq}: " if self.seq else ""
        return where + super().__str__()


class Impossible(Exception):
    """A check that was asked for cannot be done."""


def need(good, text, seq=0):
    if not good:
        raise Fault(text, seq)


# --- 1 to 3: events -----------------------------------------------------------

DECISION = """subject s, lineage l, operation s, resource s, action s?, allowed f, reason_code s,
    policy_version s, policy_digest h, owner s?, rule s?, failed l?, trace_id s?, operation_id s?,
    arguments_digest h?, previous_revision i?, sop_id s?, sop_version i?, step_id s?, run_id s?, observed l?, blind s?"""
RECORD = "owner_agent_id s, namespace s, key s, visibility s, class s, revision i"
EMERGENCY = "scope s, capabilities l?, all f?, epoch i"
STEP = "run_id s, step_id s, reason_code s"
HOLD = "owner_agent_id s, namespace s?, key s?, seq i?"
EFFECT = "run_id s, step_id s, action s, operation_id s, handler s?, outcome s?"
REFUSALS = "id s?, code s, count i, first t, last t"

# Kinds: s string, i integer, h hash, t time, l list, n numbers, f flag, or the name of an
# object; ? marks an optional member.
OBJECTS = {
    "admin": "id s, public_key s",
    "previous": "origin s, checkpoint s, reason s",
    "ledger.created": "format s, origin s, ledger s, admin admin, checkpoint_key s, permit_key s, policy_signers l?, previous previous?",
    "ledger.opened": "rules i, build s",
    "decision.allowed": DECISION,
    "decision.denied": DECISION,
    "agent.registered": "agent_id s, parent_id s, capabilities l, use l?, writes l?, public_key s",
    "agent.updated": "agent_id s, capabilities l, use l?, writes l?",
    "agent.revoked": "agent_id s",
    "principal.registered": "id s, role s, public_key s, actions l?, groups l?, root s?",
    "principal.rekeyed": "id s, public_key s",
    "principal.revoked": "id s",
    "policy.activated": "version s, digest h, rules i",
    "environment.changed": "capabilities l",
    "memory.written": RECORD + ", expires t?, run_id s?",
    "memory.deleted": RECORD,
    "memory.expired": RECORD,
    "grant.given": "owner_agent_id s, namespace s, key s, to s, expires t, uses i?",
    "grant.revoked": "owner_agent_id s, namespace s, key s, to s",
    "clock.accepted": "wall t",
    "transport.denied": REFUSALS,
    "requests.refused": REFUSALS,
    "emergency.denied": EMERGENCY,
    "emergency.lifted": EMERGENCY,
    "run.admitted": "run_id s, sop_id s, sop_version i, steps l, actions l",
    "run.started": "run_id s",
    "run.finished": "run_id s",
    "run.failed": STEP,
    "run.cancelled": "run_id s",
    "run.doubted": STEP,
    "run.resolved": "run_id s, step_id s, outcome s",
    "effect.started": EFFECT,
    "effect.finished": EFFECT,
    "effect.failed": EFFECT,
    "restriction.added": "agent_id s, id s, action s, require s",
    "restriction.removed": "agent_id s, id s",
    "resource.set": "id s, classification s, owner s?, tags l?",
    "signers.set": "number i, keys l",
    "payload.erased": "basis s, owner_agent_id s?, before i?, seqs n?",
    "memory.erased": RECORD,
    "hold.placed": HOLD,
    "hold.lifted": HOLD,
    "key.rotated": "key s, number i, public_key s?",
    "key.retired": "key s, number i, checkpoint s?",
}
ENVELOPE = "v i, seq i, prev h, time t, id s, type s, agent s, cause i?, payload h?"

HASH = re.compile(r"[0-9a-f]{64}")
UUID7 = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")
ID = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")
ORIGIN = re.compile(r"[\x21-\x2a\x2c-\x7e]{1,255}")
TIME = re.compile(r"(\d{4})-(\d\d)-(\d\d)T(\d\d):(\d\d):(\d\d)\.\d{6}Z", re.ASCII)
RESERVED = {"all", "any", "svc", "sys", "none"}
SHORT = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t"}


def write_string(s):
    need(isinstance(s, str) and "\0" not in s, "no string without NUL")
    return '"' + "".join(SHORT.get(c) or (f"\\u{ord(c):04x}" if c < " " else c) for c in s) + '"'


def is_time(s):
    m = isinstance(s, str) and TIME.fullmatch(s)
    if not m:
        return False
    year, month, day, hour, minute, second = map(int, m.groups())
    return (year >= 1970 and 1 <= month <= 12 and 1 <= day <= calendar.monthrange(year, month)[1]
            and hour < 24 and minute < 60 and second < 60)


def write_value(kind, v):
    if kind == "s":
        return write_string(v)
    if kind == "i":
        need(type(v) is int and 0 <= v <= INTEGER_MAX, "no integer of 0 to 2^53-1")
        return str(v)
    if kind == "f":
        need(type(v) is bool, "no flag")
        return "true" if v else "false"
    if kind == "h":
        need(isinstance(v, str) and HASH.fullmatch(v), "no hash")
        return f'"{v}"'
    if kind == "t":
        need(is_time(v), "no time")
        return f'"{v}"'
    if kind == "l":
        need(isinstance(v, list), "no list")
        return "[" + ",".join(map(write_string, v)) + "]"
    if kind == "n":
        need(isinstance(v, list), "no list of numbers")
        text = [write_value("i", n) for n in v]
        need(all(a < b for a, b in zip(v, v[1:])), "numbers that do not ascend")
        return "[" + ",".join(text) + "]"
    return write_object(OBJECTS[kind], v)


def write_object(members, v, body=None):
    """v written as the format writes it; body is the kind of a member body at the end."""
    need(isinstance(v, dict), "no object")
    left, out = dict(v), []
    for name, kind in (m.split() for m in members.split(",")):
        if kind.endswith("?"):
            if name not in left:
                continue
            kind = kind[:-1]
            need(left[name] not in ("", 0) and left[name] != [] and (kind != "h" or left[name] != ZEROS), f"{name} is there and says nothing")
        need(name in left, f"{name} is missing")
        out.append(f'"{name}":' + write_value(kind, left.pop(name)))
    if body:
        need("body" in left, "body is missing")
        out.append('"body":' + write_object(OBJECTS[body], left.pop("body")))
    need(not left, "unknown members " + ", ".join(sorted(left)))
    return "{" + ",".join(out) + "}"


def no_float(text):
    raise Fault(f"a number that is no integer: {text[:40]}")


def parse_event(b):
    """The event as a dictionary. Refuses all bytes but the one way to write it."""
    need(len(b) <= EVENT_MAX, f"{len(b)} bytes")
    try:
        e = json.loads(b.decode("utf-8"), parse_float=no_float, parse_constant=no_float)
        need(isinstance(e, dict), "no object")
        need(e.get("v") == 1 and type(e["v"]) is int, "unknown format version")
        kind = e.get("type")
        need(isinstance(kind, str) and "." in kind and kind in OBJECTS, "unknown event type")
        again = write_object(ENVELOPE, e, body=kind).encode("utf-8")
    except (ValueError, RecursionError) as err:  # UnicodeError and JSONDecodeError are ValueErrors
        raise Fault(f"no event: {err}") from None
    need(again == b, "not in the one form an event is written in")
    need(e["seq"] >= 1, "seq is 0")
    need(e.get("cause", 0) < e["seq"], "cause is not an earlier event")
    need(UUID7.fullmatch(e["id"]), "id is no version 7 UUID")
    agent = e["agent"]
    need(agent == "sys" or ID.fullmatch(agent) and agent not in RESERVED, "agent is no id")
    if kind.startswith("decision."):
        need(e["body"]["allowed"] == (kind == "decision.allowed"), "allowed disagrees with the type")
    return e


# --- 4 and 5: hashes and tree -------------------------------------------------

def sha(b):
    return hashlib.sha256(b).digest()


def leaf_hash(event):
    return sha(b"\x00" + event)


def node_hash(left, right):
    return sha(b"\x01" + left + right)


def genesis_hash(origin):
    name = origin.encode("utf-8")
    return sha(b"ledgerd/genesis/v1\n" + len(name).to_bytes(2, "big") + name)


def commitment(tag, salt, b):
    return sha(tag + salt + len(b).to_bytes(8, "big") + b)


def payload_commitment(salt, b):
    return commitment(b"ledgerd/payload/v1\n", salt, b)


def argument_digest(salt, b):
    return commitment(b"ledgerd/args/v1\n", salt, b)


class Tree:
    """Grows leaf by leaf. complete(level, index, hash) is told of every node."""

    def __init__(self, complete=lambda level, index, h: None):
        self.size, self.edge, self.complete = 0, [], complete

    def add(self, leaf):
        level, index, h = 0, self.size, leaf
        self.complete(level, index, h)
        while index & 1:
            h = node_hash(self.edge.pop(), h)
            level, index = level + 1, index >> 1
            self.complete(level, index, h)
        self.edge.append(h)
        self.size += 1

    def root(self):
        if not self.edge:
            return sha(b"")
        h = self.edge[-1]
        for left in reversed(self.edge[:-1]):
            h = node_hash(left, h)
        return h


# --- Ed25519, RFC 8032 --------------------------------------------------------

P = 2**255 - 19
L = 2**252 + 27742317777372353535851937790883648493
D = -121665 * pow(121666, P - 2, P) % P
SQRT_M1 = pow(2, (P - 1) // 4, P)


def point_add(a, b):
    k = (a[1] - a[0]) * (b[1] - b[0]) % P
    m = (a[1] + a[0]) * (b[1] + b[0]) % P
    c, d = 2 * a[3] * b[3] * D % P, 2 * a[2] * b[2] % P
    e, f, g, h = m - k, d - c, d + c, m + k
    return (e * f % P, g * h % P, f * g % P, e * h % P)


def point_mul(s, a):
    q = (0, 1, 1, 0)
    while s > 0:
        if s & 1:
            q = point_add(q, a)
        a = point_add(a, a)
        s >>= 1
    return q


def point_read(b):
    y = int.from_bytes(b, "little")
    sign, y = y >> 255, y & ((1 << 255) - 1)
    if y >= P:
        return None
    xx = (y * y - 1) * pow(D * y * y + 1, P - 2, P) % P
    x = pow(xx, (P + 3) // 8, P)
    if x * x % P != xx:
        x = x * SQRT_M1 % P
    if x * x % P != xx or (x == 0 and sign):
        return None
    if x & 1 != sign:
        x = P - x
    return (x, y, 1, x * y % P)


BASE = point_read((4 * pow(5, P - 2, P) % P).to_bytes(32, "little"))


def ed25519_verify(key, message, signature):
    a, r = point_read(key), point_read(signature[:32])
    s = int.from_bytes(signature[32:], "little")
    if len(key) != 32 or len(signature) != 64 or a is None or r is None or s >= L:
        return False
    h = int.from_bytes(hashlib.sha512(signature[:32] + key + message).digest(), "little") % L
    left, right = point_mul(s, BASE), point_add(r, point_mul(h, a))
    return ((left[0] * right[2] - right[0] * left[2]) % P == 0
            and (left[1] * right[2] - right[1] * left[2]) % P == 0)


# --- 6: checkpoints -----------------------------------------------------------

NOTE_MAX = 65536


def strict_base64(s):
    try:
        b = base64.b64decode(s, validate=True)
    except (binascii.Error, ValueError):
        return None
    return b if base64.b64encode(b).decode() == s else None


def read_vkey(text):
    name, _, rest = text.partition("+")
    key_id, _, key = rest.partition("+")
    raw = strict_base64(key)
    if not raw or len(raw) != 33 or raw[0] != 1 or not ORIGIN.fullmatch(name):
        raise ValueError("no Ed25519 verifier key")
    if sha(name.encode() + b"\n" + raw)[:4].hex() != key_id:
        raise ValueError("the key's id is not its hash")
    return name, bytes.fromhex(key_id), raw[1:]


def read_checkpoint(b):
    """origin, size, root, signed text, [(name, signature)]; no signature is checked."""
    need(len(b) <= NOTE_MAX, "checkpoint: too long")
    try:
        text, found, signatures = b.decode("utf-8").partition("\n\n")
    except UnicodeDecodeError:
        raise Fault("checkpoint: no UTF-8") from None
    lines = text.split("\n")
    need(found and len(lines) == 3, "checkpoint: not three lines and signatures")
    origin, size, root = lines
    need(ORIGIN.fullmatch(origin), "checkpoint: no origin")
    need(re.fullmatch(r"0|[1-9][0-9]{0,15}", size) and int(size) <= INTEGER_MAX, "checkpoint: no size")
    root = strict_base64(root)
    need(root is not None and len(root) == 32, "checkpoint: no root")
    need(signatures.endswith("\n"), "checkpoint: no signature")
    need(all(c >= " " or c == "\n" for c in signatures), "checkpoint: a control character")
    need(signatures.count("\n") <= 100, "checkpoint: too many signatures")
    signed = []
    for line in signatures[:-1].split("\n"):
        m = re.fullmatch("\u2014 ([^ +]+) ([A-Za-z0-9+/=]+)", line)
        sig = m and strict_base64(m[2])
        need(sig and len(sig) > 4 and not any(map(str.isspace, m[1])), "checkpoint: malformed signature line")
        signed.append((m[1], sig))
    return origin, int(size), root, (text + "\n").encode(), signed


VERIFIED = {}  # Ed25519 in Python is slow, and the same note is asked for again


def open_checkpoint(b, vkey):
    """origin, size and root of a checkpoint signed by vkey."""
    origin, size, root, text, signed = read_checkpoint(b)
    try:
        name, key_id, key = read_vkey(vkey)
    except ValueError as err:
        raise Fault(f"checkpoint key: {err}") from None
    need(name == origin, f"checkpoint of {origin}, key of {name}")
    own = [sig[4:] for who, sig in signed if who == name and sig[:4] == key_id]
    need(len(own) == 1, f"checkpoint: {len(own)} signatures by the key, want 1")
    asked = (key, text, own[0])
    if asked not in VERIFIED:
        VERIFIED[asked] = ed25519_verify(*asked)
    need(VERIFIED[asked], "checkpoint: the signature does not fit")
    return origin, size, root


# --- 8: canonical JSON --------------------------------------------------------

NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
ESCAPE = {'"': '"', "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}


class Reader:
    """Reads one text of section 8 and gives its canonical form."""

    def __init__(self, b):
        try:
            self.s = b.decode("utf-8")
        except UnicodeDecodeError:
            raise Fault("no UTF-8") from None
        self.at = 0

    def text(self):
        out = self.value(0)
        self.space()
        need(self.at == len(self.s), "data after the value")
        return out

    def space(self):
        while self.at < len(self.s) and self.s[self.at] in " \t\n\r":
            self.at += 1

    def next(self):
        self.space()
        return self.s[self.at:self.at + 1]

    def take(self, c):
        need(self.next() == c, f"no {c}")
        self.at += 1

    def value(self, depth):
        c = self.next()
        if c in ("{", "["):
            need(depth < 32, "nested too deep")
            return self.object(depth + 1) if c == "{" else self.array(depth + 1)
        if c == '"':
            return write_string(self.string())
        for word in ("true", "false", "null"):
            if self.s.startswith(word, self.at):
                self.at += len(word)
                return word
        return self.number()

    def object(self, depth):
        members = {}
        self.take("{")
        if self.next() != "}":
            while True:
                need(self.next() == '"', "no member name")
                name = self.string()
                need(name not in members, "duplicate member name")
                self.take(":")
                members[name] = self.value(depth)
                if self.next() != ",":
                    break
                self.at += 1
        self.take("}")
        order = sorted(members, key=lambda n: n.encode("utf-16-be"))
        return "{" + ",".join(write_string(n) + ":" + members[n] for n in order) + "}"

    def array(self, depth):
        elements = []
        self.take("[")
        if self.next() != "]":
            elements.append(self.value(depth))
            while self.next() == ",":
                self.at += 1
                elements.append(self.value(depth))
        self.take("]")
        return "[" + ",".join(elements) + "]"

    def string(self):
        out = []
        self.at += 1
        while True:
            c = self.s[self.at:self.at + 1]
            need(c and c >= " ", "control character, or no end")
            self.at += 1
            if c == '"':
                return "".join(out)
            out.append(c if c != "\\" else self.escape())

    def escape(self):
        c = self.s[self.at:self.at + 1]
        self.at += 1
        if c in ESCAPE:
            return ESCAPE[c]
        need(c == "u", "unknown escape")
        unit = self.unit()
        need(unit != 0, "NUL")
        if 0xD800 <= unit < 0xDC00:
            need(self.s.startswith("\\u", self.at), "unpaired surrogate")
            self.at += 2
            low = self.unit()
            need(0xDC00 <= low < 0xE000, "unpaired surrogate")
            return chr(0x10000 + ((unit - 0xD800) << 10) + low - 0xDC00)
        need(not 0xDC00 <= unit < 0xE000, "unpaired surrogate")
        return chr(unit)

    def unit(self):
        digits = self.s[self.at:self.at + 4]
        need(re.fullmatch("[0-9a-fA-F]{4}", digits), "bad escape")
        self.at += 4
        return int(digits, 16)

    def number(self):
        m = NUMBER.match(self.s, self.at)
        need(m, "no JSON value")
        text, self.at = m[0], m.end()
        if m[1] or m[2]:
            f = float(text)
            need(abs(f) != float("inf"), "number too large")
            need(f != 0 or not text.startswith("-"), "negative zero")
        else:
            need(text != "-0", "negative zero")
            need(len(text) < 20 and abs(int(text)) <= INTEGER_MAX, "integer beyond 2^53-1")
        return text


# --- 9: exports ---------------------------------------------------------------

def number_path(n):
    groups = [f"{n % 1000:03d}"]
    while n >= 1000:
        n //= 1000
        groups.insert(0, f"x{n % 1000:03d}")
    return "/".join(groups)


def rows(size, level):
    """(path under its directory, width) of every tile of a level."""
    hashes = size >> (8 * level)
    for n in range((hashes + 255) // 256):
        width = min(256, hashes - n * 256)
        yield number_path(n) + ("" if width == 256 else f".p/{width}"), width


class Directory:
    """The files under a directory, as bytes by path; only regular ones."""

    def __init__(self, root):
        self.root, self.names = root, set()
        for base, dirs, files in os.walk(root):
            for name in files + [d for d in dirs if os.path.islink(os.path.join(base, d))]:
                self.names.add(os.path.relpath(os.path.join(base, name), root).replace(os.sep, "/"))

    def read(self, name, most):
        path = os.path.join(self.root, name)
        need(stat.S_ISREG(os.lstat(path).st_mode), f"{name} is no regular file")
        with open(path, "rb") as f:
            b = f.read(most + 1)
        need(len(b) <= most, f"{name} is longer than {most} bytes")
        return b


def is_open(e):
    return e["type"] == "policy.activated" or (e["type"] == "memory.written" and e["body"]["class"] == "mandatory")


def check_payload(files, e, seq):
    """Checks the open payload of an event, and returns the name of its file."""
    name = f"payloads/{seq}"
    if is_open(e):
        need("payload" in e, "no commitment to the open payload", seq)
        need(name in files.names, "the open payload is missing", seq)
    elif name not in files.names or "payload" not in e:
        return None
    b = files.read(name, 1 << 20)
    need(HASH.fullmatch(b[:64].decode("latin-1")) and b[64:65] == b"\n", f"{name}: no line with a salt", seq)
    got = payload_commitment(bytes.fromhex(b[:64].decode()), b[65:]).hex()
    need(got == e["payload"], f"expected commitment {e['payload']}, {name} gives {got}", seq)
    if e["type"] == "policy.activated":
        need(sha(b[65:]).hex() == e["body"]["digest"], f"{name}: another document than the one named", seq)
    return name


ERASABLE = {"memory.read", "memory.write", "memory.delete", "memory.load", "action.authorize", "sop.validate", "sop.submit",
            "run.cancel", "run.resolve", "grant.give", "grant.revoke", "emergency.deny", "emergency.lift"}


def erasable_owner(e):
    """Whose the payload of an event is, if it may be erased; else None."""
    b = e["body"]
    if e["type"].startswith("decision.") and b["operation"] in ERASABLE:
        of, named, _ = b["resource"].partition(":")
        return of if b["operation"] == "memory.load" and named else b["subject"]
    if e["type"] == "memory.written" and b["class"] != "mandatory":
        return b["owner_agent_id"]
    return e["agent"] if e["type"] in ("effect.finished", "effect.failed") else None


def check_erased(files, e, sealed):
    """No payload that an event says is erased is here. sealed is the first that is, of each owner."""
    b = e["body"]
    gone = [*b.get("seqs", []), *[seq for owner, seq in sealed.items() if owner == b.get("owner_agent_id") and seq < b.get("before", 0)]]
    for seq in gone:
        need(f"payloads/{seq}" not in files.names, f"event {e['seq']} erased its payload, which is here", seq)


def check_first(e, origin):
    need(e["type"] == "ledger.created", "event 1 is no ledger.created", 1)
    b = e["body"]
    need(b["format"] == "ledgerd/1", "unknown format " + ascii(b["format"]), 1)
    need(ORIGIN.fullmatch(b["origin"]), "no origin", 1)
    need(b["origin"] == origin, f"expected the checkpoint's origin {origin}, found {b['origin']}", 1)
    try:
        name, _, key = read_vkey(b["checkpoint_key"])
        need(name == origin, "the checkpoint key has another name than the log", 1)
        name, _, permit = read_vkey(b["permit_key"])
        need(name == origin + "/permit", "the permit key is not called after the log", 1)
        need(permit != key, "one key for checkpoints and for permits", 1)
    except ValueError as err:
        raise Fault(f"key: {err}", 1) from None
    if "previous" in b:
        check_previous(b["previous"], origin)
    return b["checkpoint_key"]


def epoch(origin):
    """The name that all epochs of a log share, and the epoch's number."""
    name, _, number = origin.rpartition("/")
    return (name, int(number)) if name and re.fullmatch(r"[0-9]+", number) and int(number) < 1 << 32 else (origin, 1)


def check_previous(p, origin):
    """Section 4: an earlier epoch of the same log, a checkpoint of it, a reason."""
    name, number = epoch(origin)
    of, before = epoch(p["origin"])
    need(ORIGIN.fullmatch(p["origin"]) and of == name and before < number, f"previous is no earlier epoch of {name}", 1)
    need(p["reason"] in ("loss", "rollback", "compromise"), "previous: no reason", 1)
    try:
        kept, size, *_ = read_checkpoint(p["checkpoint"].encode())
    except Fault as err:
        raise Fault(f"previous: {err}", 1) from None
    need(kept == p["origin"] and size > 0, f"previous: a checkpoint of {kept} at size {size}", 1)


MAY_COME_AGAIN = {"operation_id_conflict", "unknown_agent", "agent_revoked", "not_permitted_for_role", "emergency_deny"}


def check_operation(e, seq, used):
    """Section 11: what was decided under an operation id is decided for ever."""
    d = e["body"]
    if not e["type"].startswith("decision.") or "operation_id" not in d or d["operation"] == "memory.read":
        return
    if d["operation"] == "sop.validate" and "step_id" in d:
        return
    first = used.setdefault((d["subject"], d["operation_id"]), seq)
    need(first == seq or d["reason_code"] in MAY_COME_AGAIN, f"operation id {ascii(d['operation_id'])} of {d['subject']} was used by event {first}", seq)


def entries(files, size):
    """(seq, bytes) of every entry of an export, framed or a Fault."""
    seq = 0
    for path, width in rows(size, 0):
        name = "tile/entries/" + path
        need(name in files.names, f"{name} is missing", seq + 1)
        b, at = files.read(name, 256 * (2 + EVENT_MAX)), 0
        for _ in range(width):
            seq += 1
            n = int.from_bytes(b[at:at + 2], "big")
            need(at + 2 + n <= len(b), f"{name}: an entry of {n} bytes is longer than what is left", seq)
            yield seq, b[at + 2:at + 2 + n]
            at += 2 + n
        need(at == len(b), f"{name}: {len(b) - at} bytes after the last entry", seq)


class Tiles:
    """Compares every node the tree completes with the tile that holds it."""

    def __init__(self, files, size):
        self.files, self.size, self.names, self.held = files, size, set(), {}

    def complete(self, level, index, h):
        if level % 8:
            return
        level, n = level // 8, index // 256
        if self.held.get(level, (None,))[0] != n:
            width = min(256, (self.size >> (8 * level)) - n * 256)
            name = f"tile/{level}/" + number_path(n) + ("" if width == 256 else f".p/{width}")
            first = (index << (8 * level)) + 1
            need(name in self.files.names, f"{name} is missing", first)
            b = self.files.read(name, 8192)
            need(len(b) == 32 * width, f"{name} has {len(b)} bytes, want {32 * width}", first)
            self.names.add(name)
            self.held[level] = (n, b, name)
        _, b, name = self.held[level]
        stored = b[index % 256 * 32:][:32]
        need(stored == h, f"{name} holds {stored.hex()}, the entries give {h.hex()}", (index << (8 * level)) + 1)


class Keys:
    """The timeline of checkpoint keys, section 6."""

    def __init__(self):
        self.list, self.since, self.roots, self.known, self.called = [], [], {}, set(), {}

    def first(self, public):
        self.add(public, 1)

    def add(self, public, seq):
        k = {"public": public, "since": seq, "until": None, "note": None}
        self.list.append(k)
        self.since.append(seq)
        self.known.add(public)
        self.called.setdefault(read_vkey(public)[:2], []).append(k)

    def take(self, e, origin):
        b, seq = e["body"], e["seq"]
        if e["type"] not in ("key.rotated", "key.retired") or b["key"] != "checkpoint":
            return
        overlap = len(self.list) > 1 and self.list[-2]["until"] is None
        if e["type"] == "key.rotated":
            need(b["number"] == len(self.list) + 1 and not overlap, f"checkpoint key {b['number']} out of turn", seq)
            public = b.get("public_key", "")
            try:
                need(read_vkey(public)[0] == origin, "the new checkpoint key has another name than the log", seq)
            except ValueError as err:
                raise Fault(f"checkpoint key: {err}", seq) from None
            need(public not in self.known, "a checkpoint key comes back", seq)
            self.add(public, seq)
        else:
            need(overlap and b["number"] == len(self.list) - 1, f"checkpoint key {b['number']} is not to be retired", seq)
            self.list[-2].update(until=seq, note=b.get("checkpoint", "").encode())

    def at(self, seq, tree):
        """Keeps the roots of the sizes at which two keys are in force."""
        if len(self.list) > 1 and self.list[-2]["until"] is None:
            self.roots[seq] = tree.root()

    def open(self, signed):
        """origin, size and root of a checkpoint that the keys in force signed, and no other."""
        origin, size, root, _, lines = read_checkpoint(signed)
        newest, in_force = bisect.bisect_right(self.since, size), []
        for k in self.list[max(newest - 2, 0):newest]:  # no more than two are ever in force
            if k["until"] is None or size < k["until"]:
                open_checkpoint(signed, k["public"])
                in_force.append(k)
        for who, sig in lines:
            for k in self.called.get((who, sig[:4]), []):
                need(k in in_force, f"key {sig[:4].hex()} signed size {size}, in force from {k['since']} until {k['until']}", k["until"] or k["since"])
        need(in_force, f"no key is in force at size {size}")
        return origin, size, root

    def check(self, origin):
        """Every retired key handed over to the next one."""
        for k, after in zip(self.list, self.list[1:]):
            if k["until"] is None:
                continue
            name, size, root = self.open(k["note"])
            need(name == origin and after["since"] <= size < k["until"], "the handing over is of another size", k["until"])
            need(self.roots.get(size) == root, f"the handing over has another root at size {size}", k["until"])


def verify_export(files, vkey=None, remembered=None, receipt=None):
    """Returns what to say of a good export; raises Fault or Impossible."""
    if "checkpoint" not in files.names:
        raise Impossible("there is no checkpoint")
    if not any(n.startswith("tile/entries/") for n in files.names):
        raise Impossible("there is no event")
    signed = files.read("checkpoint", NOTE_MAX)
    origin, size, root = read_checkpoint(signed)[:3]
    if size == 0:
        raise Impossible("there is no event")
    kept = remembered and read_remembered(remembered)
    tiles = Tiles(files, size)
    tree, known, at_kept, keys = Tree(tiles.complete), {"checkpoint"}, None, Keys()
    prev, time, named, used, sealed = None, "", None, {}, {}
    for seq, b in entries(files, size):
        try:
            e = parse_event(b)
        except Fault as f:
            raise Fault(f"expected an event, found {f}", seq) from None
        need(e["seq"] == seq, f"expected seq {seq}, found {e['seq']}", seq)
        if seq == 1:
            named = check_first(e, origin)
            keys.first(named)
            prev = genesis_hash(origin)
        else:
            need(e["type"] != "ledger.created", "a second ledger.created", seq)
        tree.add(leaf_hash(b))
        need(e["prev"] == prev.hex(), f"expected prev {prev.hex()}, found {e['prev']}", seq)
        need(e["time"] >= time, f"expected a time not before {time}, found {e['time']}", seq)
        keys.take(e, origin)
        keys.at(seq, tree)
        here = check_payload(files, e, seq)
        known.add(here)
        check_operation(e, seq, used)
        if here:
            sealed.setdefault(erasable_owner(e), seq)
        if e["type"] == "payload.erased":
            check_erased(files, e, sealed)
        if receipt and seq == receipt["seq"]:
            check_receipt(receipt, b, e)
        prev, time = leaf_hash(b), e["time"]
        if kept and seq == kept[1]:
            at_kept = tree.root()
    if receipt:
        need(receipt["origin"] in (None, origin), f"expected the receipt's log {receipt['origin']}, found {origin}")
        need(receipt["seq"] <= size, f"expected the receipt's event, found a log of {size} events", receipt["seq"])
    need(tree.root() == root, f"expected root {root.hex()} at size {size}, found {tree.root().hex()}")
    known |= tiles.names | {"tile/entries/" + path for path, _ in rows(size, 0)}
    strangers = sorted(files.names - known)
    need(not strangers, f"files that are no part of the export: {ascii(strangers[:3])}")
    if vkey:
        need(vkey in [k["public"] for k in keys.list], f"expected the key {vkey}, found {ascii(named)}", 1)
    keys.check(origin)
    keys.open(signed)
    if kept:
        check_remembered(remembered, kept, origin, size, at_kept, vkey, keys)
    return origin, size, root


def read_remembered(b):
    try:
        kept = read_checkpoint(b)
    except Fault as f:
        raise Impossible(f"the remembered checkpoint cannot be used: {f}") from None
    if kept[1] == 0:
        raise Impossible("the remembered checkpoint covers no event")
    return kept


def check_remembered(signed, kept, origin, size, root, vkey, keys):
    need(kept[0] == origin, f"expected the remembered log {kept[0]}, found {origin}", 1)
    try:
        keys.open(signed)
    except Fault as f:
        if vkey:
            raise Impossible(f"the remembered checkpoint is not signed by the key: {f}") from None
        raise Fault(f"another key than the one that signed the remembered checkpoint: {f}", 1) from None
    need(size >= kept[1], f"expected at least {kept[1]} events, found {size}", size + 1)
    need(root == kept[2], f"expected the remembered root {kept[2].hex()} at size {kept[1]}, found {root and root.hex()}")


# --- 14: receipts and proofs ---------------------------------------------------

PROOF_MAX = 131072
ROTATIONS_MAX = 16777216
RECEIPT_MAX = 786432


def read_receipt(b):
    """origin (None in a reply), seq, event_id and hash, and the whole reply if it is one."""
    if len(b) > RECEIPT_MAX:
        raise Impossible("the receipt is too long")
    try:
        text = Reader(b).text()
    except (Fault, RecursionError) as f:
        raise Impossible(f"the receipt cannot be read: {f}") from None
    r = json.loads(text)
    if not isinstance(r, dict) or r.get("type") not in ("io.ledgerd.receipt.v1", "io.ledgerd.decision.v1"):
        raise Impossible("this is no receipt")
    origin = None
    if r["type"] == "io.ledgerd.receipt.v1":
        origin = r.get("origin")
        if set(r) != {"type", "origin", "seq", "event_id", "hash"} or not isinstance(origin, str) or not ORIGIN.fullmatch(origin):
            raise Impossible("the receipt has other members than a receipt has")
    seq, event_id, h = r.get("seq"), r.get("event_id"), r.get("hash")
    if type(seq) is not int or seq < 1:
        raise Impossible("the receipt names no seq")
    if not isinstance(event_id, str) or not UUID7.fullmatch(event_id):
        raise Impossible("the receipt names no event id")
    if not isinstance(h, str) or not HASH.fullmatch(h) or h == ZEROS:
        raise Impossible("the receipt names no hash")
    return {"origin": origin, "seq": seq, "event_id": event_id, "hash": bytes.fromhex(h), "reply": r if origin is None else None}


TOLD = ("allowed", "reason_code", "subject", "operation", "resource", "policy_version", "owner", "rule", "operation_id")
HIDDEN = ("not_visible_from", "record_not_found", "grant_required")


def check_receipt(receipt, b, e):
    """That an event is the receipt's, and says what the reply does."""
    seq = receipt["seq"]
    need(receipt["hash"] == leaf_hash(b), f"expected the receipt's hash {receipt['hash'].hex()}, found {leaf_hash(b).hex()}", seq)
    need(receipt["event_id"] == e["id"] and seq == e["seq"], f"expected the receipt's event {receipt['event_id']}, found {e['id']}", seq)
    if receipt["reply"] is None:
        return
    need(e["type"].startswith("decision."), f"expected a decision, as the reply is of one, found {e['type']}", seq)
    for name in TOLD:
        if name not in receipt["reply"]:
            continue
        found, good = receipt["reply"][name], [e["body"].get(name, "")]
        if name == "reason_code" and good[0] in HIDDEN:
            good.append("record_unavailable")
        need(any(type(found) is type(g) and found == g for g in good), f"{name}: the event says {ascii(good[0])}, the reply {ascii(found)}", seq)


def read_path(b, word, head=""):
    """number, hashes and checkpoint of a proof."""
    need(len(b) <= PROOF_MAX, "proof: too long")
    try:
        text = b.decode("utf-8")
    except UnicodeDecodeError:
        raise Fault("proof: no UTF-8") from None
    need(text.startswith(head), "proof: of another format")
    path, found, signed = text[len(head):].partition("\n\n")
    need(found, "proof: no checkpoint")
    lines = path.split("\n")
    if head and lines[0].startswith("extra "):
        need(strict_base64(lines.pop(0)[6:]), "proof: no extra data")
    m = lines and re.fullmatch(word + r" (0|[1-9][0-9]{0,15})", lines[0])
    need(m and int(m[1]) <= INTEGER_MAX, f"proof: no line {word} with a number")
    hashes = [strict_base64(line) for line in lines[1:]]
    need(len(hashes) <= 63 and all(h is not None and len(h) == 32 for h in hashes), "proof: a line that is no hash")
    read_checkpoint(signed.encode())
    return int(m[1]), hashes, signed.encode()


def split_at(n):
    """The largest power of two smaller than n."""
    return 1 << (n - 1).bit_length() - 1


def path_root(m, n, leaf, hashes):
    if n == 1:
        need(not hashes, "inclusion: expected fewer hashes in the proof")
        return leaf
    need(hashes, "inclusion: expected more hashes in the proof")
    k, h = split_at(n), hashes[-1]
    if m < k:
        return node_hash(path_root(m, k, leaf, hashes[:-1]), h)
    return node_hash(h, path_root(m - k, n - k, leaf, hashes[:-1]))


def path_roots(m, n, old, hashes, whole):
    if m == n:
        need(len(hashes) == (0 if whole else 1), "consistency: expected another number of hashes in the proof")
        return (old, old) if whole else (hashes[0], hashes[0])
    need(hashes, "consistency: expected more hashes in the proof")
    k, h = split_at(n), hashes[-1]
    if m <= k:
        a, b = path_roots(m, k, old, hashes[:-1], whole)
        return a, node_hash(b, h)
    a, b = path_roots(m - k, n - k, old, hashes[:-1], False)
    return node_hash(h, a), node_hash(h, b)


def follow(rotations, vkey):
    """The pinned key and those it handed over to, each with the seq that brought it."""
    if len(rotations) > ROTATIONS_MAX:
        raise Impossible("rotations: too long")
    name, keys, notes, known = read_vkey(vkey)[0], [], [], set()
    for proof in re.split(b"(?<=\n)(?=c2sp.org/tlog-proof@v1\n)", rotations):
        index, hashes, signed = read_path(proof, "index", "c2sp.org/tlog-proof@v1\n")
        extra = re.match(b"[^\n]*\nextra ([^\n]*)\n", proof)
        need(extra, "rotations: a proof without its event")
        b = base64.b64decode(extra[1])
        e = parse_event(b)
        body, seq = e["body"], e["seq"]
        need(seq == index + 1, f"rotations: the proof of index {index} is with event {seq}")
        if not keys:
            need(e["type"] == "ledger.created" and seq == 1 and body["origin"] == name, f"rotations: no event 1 of {name}")
            public = body["checkpoint_key"]
        else:
            need(e["type"] == "key.rotated" and body["key"] == "checkpoint" and body["number"] == len(keys) + 1 and seq > keys[-1][0],
                 f"rotations: event {seq} does not bring key {len(keys) + 1}")
            public = body.get("public_key", "")
        try:
            need(read_vkey(public)[0] == name and public not in known, f"rotations: no new key of {name}")
        except ValueError as err:
            raise Fault(f"rotations: {err}") from None
        keys.append((seq, public))
        known.add(public)
        notes.append(signed)
        for _, k in keys[-2:]:
            _, size, root = open_checkpoint(signed, k)
            need(index < size and path_root(index, size, leaf_hash(b), hashes) == root, f"rotations: event {seq} is not in the tree of its note")
    for signed in notes:
        open_trusted(signed, keys)
    need(vkey in known, "rotations: of other keys than the pinned one")
    return keys[[k for _, k in keys].index(vkey):]


def open_trusted(signed, keys):
    """A checkpoint signed by a key, or by the newest of several that is in force at its size."""
    if isinstance(keys, str):
        return open_checkpoint(signed, keys)
    size = read_checkpoint(signed)[1]
    newest = bisect.bisect_right(keys, (size, chr(sys.maxunicode)))
    need(newest, f"checkpoint: no trusted key is in force at size {size}")
    return open_checkpoint(signed, keys[newest - 1][1])


def check_inclusion(receipt, proof, vkey):
    """Returns the size of the checkpoint under which the receipt is shown."""
    index, hashes, signed = read_path(proof, "index", "c2sp.org/tlog-proof@v1\n")
    if vkey:
        origin, size, root = open_trusted(signed, vkey)
    else:
        origin, size, root = read_checkpoint(signed)[:3]
    need(receipt["origin"] in (None, origin), f"expected a proof of the log {receipt['origin']}, found {origin}")
    need(index == receipt["seq"] - 1, f"expected a proof of index {receipt['seq'] - 1}, found {index}", receipt["seq"])
    need(index < size, f"expected a checkpoint of more than {index} events, found {size}", receipt["seq"])
    found = path_root(index, size, receipt["hash"], hashes)
    need(found == root, f"expected root {root.hex()}, found {found.hex()}", receipt["seq"])
    if not vkey:
        raise Impossible("no key to check the signature with: anybody can have made this proof (--vkey)")
    return size


def check_consistency(remembered, proof, vkey):
    """Returns the remembered size and that of the checkpoint that continues it."""
    old_size, hashes, signed = read_path(proof, "old")
    need(old_size > 0, "proof: from a log of no events")
    if not vkey:
        raise Impossible("no key to check the signatures with (--vkey)")
    origin, size, root = open_trusted(signed, vkey)
    try:
        kept = open_trusted(remembered, vkey)
    except Fault as f:
        raise Impossible(f"the remembered checkpoint is not signed by the key: {f}") from None
    if kept[1] == 0:
        raise Impossible("the remembered checkpoint covers no event")
    need(size >= kept[1], f"expected at least {kept[1]} events, found {size}")
    need(size > kept[1] or root == kept[2], f"expected root {kept[2].hex()} at size {size}, found {root.hex()}")
    need(old_size == kept[1], f"expected a proof from size {kept[1]}, found {old_size}")
    old, new = path_roots(old_size, size, kept[2], hashes, True)
    need(old == kept[2] and new == root, f"expected the roots {kept[2].hex()} and {root.hex()}, found {old.hex()} and {new.hex()}")
    return kept[1], size


# --- 13: vectors --------------------------------------------------------------

def lines(path):
    with open(path, "rb") as f:
        return f.read().splitlines()


def load(path):
    with open(path, encoding="utf-8") as f:
        return json.load(f)


def refuses(f, b):
    try:
        f(b)
    except Fault:
        return True
    return False


def check_golden(d):
    meta, tree = load(d + "/log.json"), Tree()
    prev = genesis_hash(meta["origin"])
    need(prev.hex() == meta["genesis"], "genesis")
    log = list(open(d + "/log.jsonl", "rb").read().split(b"\n"))[:-1]
    need(len(log) >= 6 and len(log) == len(meta["leaves"]) == len(meta["roots"]), "length of the golden log")
    parsed = []
    for i, b in enumerate(log):
        e = parse_event(b)
        need(e["seq"] == i + 1 and e["prev"] == prev.hex(), "golden chain", i + 1)
        prev = leaf_hash(b)
        tree.add(prev)
        need(prev.hex() == meta["leaves"][i], "leaf hash", i + 1)
        need(tree.root().hex() == meta["roots"][i], "root", i + 1)
        parsed.append(e)
    for p in meta["payloads"]:
        got = payload_commitment(bytes.fromhex(p["salt"]), p["payload"].encode()).hex()
        need(got == p["commitment"] == parsed[p["seq"] - 1]["payload"], "payload commitment", p["seq"])
        need(is_open(parsed[p["seq"] - 1]) == p["open"], "open or sealed", p["seq"])
    for a in meta["arguments"]:
        got = argument_digest(bytes.fromhex(a["salt"]), a["arguments"].encode()).hex()
        need(got == a["digest"] == parsed[a["seq"] - 1]["body"]["arguments_digest"], "argument digest", a["seq"])
    with open(d + "/checkpoint", "rb") as f, open(d + "/vkey", encoding="utf-8") as k:
        vkey = k.read().strip()
        need(vkey == meta["vkey"], "verifier key")
        need(open_checkpoint(f.read(), vkey) == (meta["origin"], len(log), tree.root()), "checkpoint")
    verify_export(Directory(d + "/export"), vkey)
    return len(log)


def check_proofs(d):
    """The vectors of section 14."""
    with open(d + "/vkey", encoding="utf-8") as f:
        vkey = f.read().strip()
    cases = [json.loads(b) for b in lines(d + "/cases.jsonl")]
    need(len(cases) > 40 and {c["exit"] for c in cases} == {0, 1, 2}, "too few cases")
    for c in cases:
        part = {name: base64.b64decode(c.get(name, "")) for name in ("receipt", "proof", "remembered", "rotations")}
        got = 0
        try:
            if c["kind"] == "inclusion":
                check_inclusion(read_receipt(part["receipt"]), part["proof"], vkey)
            elif c["kind"] == "rotated":
                check_inclusion(read_receipt(part["receipt"]), part["proof"], follow(part["rotations"], vkey))
            elif c["kind"] == "consistency":
                check_consistency(part["remembered"], part["proof"], vkey)
            else:
                read_receipt(part["receipt"])
        except Fault:
            got = 1
        except Impossible:
            got = 2
        need(got == c["exit"], f"{c['kind']}: {c['why']}: expected {c['exit']}, found {got}")
    return f"{len(cases)} receipts and proofs"


def check_vectors(d):
    if os.path.exists(d + "/cases.jsonl"):
        return check_proofs(d)
    counts = {"golden events": check_golden(d)}
    types = [b for b in open(d + "/types.jsonl", "rb").read().split(b"\n")][:-1]
    meta = load(d + "/types.json")
    need(len(types) == len(meta), "types.json and types.jsonl differ in length")
    for b, m in zip(types, meta):
        need(parse_event(b)["type"] == m["type"] and leaf_hash(b).hex() == m["leaf"], f"vector of {m['type']}")
    need({m["type"] for m in meta} == {t for t in OBJECTS if "." in t}, "the list of types")
    counts["type vectors"] = len(types)
    rejected = [json.loads(b) for b in lines(d + "/rejected.jsonl")]
    for r in rejected:
        need(refuses(parse_event, base64.b64decode(r["base64"])), f"accepted: {r['category']}: {r['why']}")
    counts["rejected"] = len(rejected)
    texts = [json.loads(b) for b in lines(d + "/json.jsonl")]
    for t in texts:
        b = base64.b64decode(t["base64"])
        if "refused" in t:
            need(refuses(lambda b: Reader(b).text(), b), f"accepted: {t['refused']}: {b[:60]!r}")
        else:
            need(Reader(b).text() == t["canonical"], f"canonical form of {b[:60]!r}")
    counts["canonical JSON texts"] = len(texts)
    return ", ".join(f"{n} {what}" for what, n in counts.items())


# --- command line -------------------------------------------------------------

def arguments(args):
    options, positional = {}, []
    args = list(args)
    while args:
        a = args.pop(0)
        if a in ("--vkey", "--checkpoint", "--vectors", "--receipt", "--proof", "--consistency", "--event", "--rotations"):
            if not args or a in options:
                raise Impossible(f"{a} needs one value")
            options[a] = args.pop(0)
        elif a.startswith("-"):
            raise Impossible(f"{a} is no option\n{__doc__}")
        else:
            positional.append(a)
    return options, positional


def read_small(path, most=NOTE_MAX):
    with open(path, "rb") as f:
        return f.read(most + 1)


def run_proof(options, vkey):
    """Receipts and proofs without the log."""
    if "--rotations" in options:
        if not vkey:
            raise Impossible("--rotations goes with --vkey, the key that is known from elsewhere")
        vkey = follow(read_small(options["--rotations"], ROTATIONS_MAX), vkey)
    if "--proof" in options:
        if "--receipt" not in options or "--consistency" in options or "--checkpoint" in options:
            raise Impossible(f"--proof goes with --receipt and --vkey\n{__doc__}")
        receipt = read_receipt(read_small(options["--receipt"], RECEIPT_MAX))
        size = check_inclusion(receipt, read_small(options["--proof"], PROOF_MAX), vkey)
        said = f"event {receipt['seq']}, hash {receipt['hash'].hex()}, is in the tree of {size} events\n"
        if "--event" in options:
            b = read_small(options["--event"], EVENT_MAX)
            check_receipt(receipt, b, parse_event(b))
        else:
            said += "not checked: the event, its id\n"
            if receipt["reply"] is not None:
                said += "not checked: what the reply says beside seq and hash (" + ", ".join(TOLD) + ", the record): the hash does not cover it (--event)\n"
        return said + "not checked: whether others are shown another history (--consistency)\nauthentic"
    if "--checkpoint" not in options or "--receipt" in options or "--event" in options:
        raise Impossible(f"--consistency goes with --checkpoint and --vkey\n{__doc__}")
    old, new = check_consistency(read_small(options["--checkpoint"]), read_small(options["--consistency"], PROOF_MAX), vkey)
    return f"the log of {new} events begins with the {old} of the remembered checkpoint\nnot checked: the events\nauthentic"


def run(args):
    options, positional = arguments(args)
    if "--vectors" in options:
        return f"vectors agree: {check_vectors(options['--vectors'])}"
    vkey, remembered, receipt = options.get("--vkey"), None, None
    if vkey is not None and vkey.startswith("@"):
        vkey = read_small(vkey[1:]).decode("utf-8", "replace").strip()
    if vkey is not None:
        try:
            read_vkey(vkey)
        except ValueError as err:
            raise Impossible(f"--vkey: {err}") from None
    if not positional and ("--proof" in options or "--consistency" in options):
        return run_proof(options, vkey)
    if len(positional) != 1 or not os.path.isdir(positional[0]) or {"--proof", "--consistency", "--event", "--rotations"} & set(options):
        raise Impossible(f"name one export directory\n{__doc__}")
    if "--checkpoint" in options:
        remembered = read_small(options["--checkpoint"])
        if not remembered:
            raise Impossible("the remembered checkpoint is empty")
    if "--receipt" in options:
        receipt = read_receipt(read_small(options["--receipt"], RECEIPT_MAX))
    origin, size, root = verify_export(Directory(positional[0]), vkey, remembered, receipt)
    said = f"{origin}: {size} events, root {root.hex()}\n"
    if not remembered:
        said += "not checked: a truncated, rewritten or replaced log (--checkpoint)\n"
    said += "not checked: whether the decisions are the ones the rules give\n"
    return said + ("authentic" if vkey else "consistent: the key comes from the data itself (--vkey)")


def main(args):
    if "-h" in args or "--help" in args:
        print(__doc__.strip())
        return 0
    try:
        print(run(args))
        return 0
    except Fault as f:
        print(f"FAULT {f}")
        return 1
    except (Impossible, OSError) as err:
        print(f"could not check: {err}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
