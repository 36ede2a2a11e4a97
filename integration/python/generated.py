"""The messages, from code that protoc makes of the .proto files now."""

import subprocess
import sys
import tempfile

FILE = "tandem/kvtransfer/v1/kvtransfer.proto"


def load(root):
    """The module of kvtransfer.proto, from the folder that holds tandem/."""
    out = tempfile.TemporaryDirectory()
    subprocess.run(["protoc", "-I", root, "--python_out", out.name, FILE], check=True)
    sys.path.insert(0, out.name)
    sys.dont_write_bytecode = True
    from tandem.kvtransfer.v1 import kvtransfer_pb2

    out.cleanup()
    return kvtransfer_pb2
