"""The last good models of a client, as files to go back to when a neighbour has ruined the run.

`NAME/good/x-000123.safetensors` is the model after round 123. Some are kept, one in ten minutes; none is
written, and so none is lost, for an hour after a neighbour has sent what is far above its median.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from pathlib import Path

from safetensors.torch import save
from torch import Tensor

KEPT = 12
EVERY_SECONDS = 600.0


class GoodModels:
    """Keeps the latest models in `folder`, which must be good when they are given."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.kept_at = folder, -math.inf

    def keep(self, x: Tensor, k: int, notes: Mapping[str, str]) -> bool:
        """Write `x` (parameters,) of round k if it is time; says whether. Raises OSError if it cannot."""
        now = time.monotonic()
        if now - self.kept_at < EVERY_SECONDS:
            return False
        self.kept_at = now
        self.folder.mkdir(mode=0o700, exist_ok=True)
        path = self.folder / f"x-{k:09d}.safetensors"
        temporary = path.with_suffix(".tmp")
        temporary.write_bytes(save({"x": x.contiguous()}, dict(notes)))
        temporary.replace(path)
        for old in sorted(self.folder.glob("x-*.safetensors"))[:-KEPT]:
            old.unlink()
        return True
