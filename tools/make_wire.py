"""Generate wire_pb2.py and its types from wire.proto: `python tools/make_wire.py` (needs grpcio-tools).

grpcio-tools 1.74 to 1.76 write code for protobuf ≥ 6.31.1, the lowest version that pyproject.toml allows.
"""

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
            f"{SOURCE}/spodgt/peer/transport/wire.proto",
        ]
    )
)
