"""Generate wire_pb2.py and its types from wire.proto: `python tools/make_wire.py` (needs grpcio-tools)."""

from __future__ import annotations

import sys
from pathlib import Path

from grpc_tools import protoc

SOURCE = Path(__file__).parent.parent / "src"
sys.exit(
    protoc.main(
        [
            "protoc",
            f"-I{SOURCE}",
            f"--python_out={SOURCE}",
            f"--pyi_out={SOURCE}",
            f"{SOURCE}/spodgt/peer/wire.proto",
        ]
    )
)
