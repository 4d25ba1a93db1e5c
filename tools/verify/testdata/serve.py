"""Runs the verifier again and again: arguments in, exit code and output out, as
lines of JSON, so that a test with many exports starts Python once."""

import contextlib
import importlib.util
import io
import json
import sys

spec = importlib.util.spec_from_file_location("verify", sys.argv[1])
verify = importlib.util.module_from_spec(spec)
spec.loader.exec_module(verify)
for line in sys.stdin:
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        code = verify.main(json.loads(line))
    print(json.dumps([code, out.getvalue()]), flush=True)
