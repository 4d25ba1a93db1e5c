"""Changes every byte of an export, one at a time, and asks the verifier."""

import importlib.util
import sys

spec = importlib.util.spec_from_file_location("verify", sys.argv[1])
verify = importlib.util.module_from_spec(spec)
spec.loader.exec_module(verify)


class Changed:
    """A directory in memory."""

    def __init__(self, files):
        self.files, self.names = files, set(files)

    def read(self, name, most):
        verify.need(len(self.files[name]) <= most, f"{name} is too long")
        return self.files[name]


def entry_at(bundle, at):
    seq, i = 0, 0
    while i <= at:
        seq, i = seq + 1, i + 2 + int.from_bytes(bundle[i:i + 2], "big")
    return seq


on_disk = verify.Directory(sys.argv[2])
files = {name: on_disk.read(name, 1 << 24) for name in on_disk.names}
verify.verify_export(Changed(files))
changes = 0
for name, original in sorted(files.items()):
    for i in range(len(original)):
        changed = bytearray(original)
        changed[i] ^= 1 << i % 8
        try:
            verify.verify_export(Changed({**files, name: bytes(changed)}))
        except verify.Fault as f:
            if name.startswith("tile/entries/") and f.seq != entry_at(original, i):
                sys.exit(f"{name}, byte {i}: {f}, want seq {entry_at(original, i)}")
        else:
            sys.exit(f"{name}, byte {i}: not found")
        changes += 1
print(f"{changes} changes found")
