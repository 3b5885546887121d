"""The result of a comparison in all its processes."""

from __future__ import annotations

import dataclasses
from functools import partial
from io import BytesIO
from typing import Any

from spodgt.record.record import Best, Diverged, Stopped
from spodgt.record.run_folder import parquet
from spodgt.runtimes.world import Runtime
from spodgt.training.result import Result


def broadcast_result(result: Result, runtime: Runtime) -> Result:
    """The result of the process that records, in all processes.

    Args:
        result: of this process; without evaluations if it does not record.
        runtime: of all processes.
    """
    import pandas as pd

    if runtime.processes == 1:
        return result
    own_facts = {
        "diverged": [dataclasses.asdict(run) for run in result.diverged],
        "stopped": [dataclasses.asdict(run) for run in result.stopped],
        "best": [dataclasses.asdict(run) for run in result.best],
        "complete": result.complete,
        "seconds": result.seconds,
    }
    fields: dict[str, Any] = runtime.broadcast_from_main(partial(dict, own_facts))
    fields["diverged"] = [Diverged(**run) for run in fields["diverged"]]
    fields["stopped"] = [Stopped(**run) for run in fields["stopped"]]
    fields["best"] = [Best(**run) for run in fields["best"]]
    for name in ("frame", "participation", "clients"):
        data = runtime.broadcast_bytes(partial(parquet, getattr(result, name)))
        fields[name] = pd.read_parquet(BytesIO(data))
    return result if runtime.is_main else dataclasses.replace(result, **fields)
