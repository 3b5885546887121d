"""The result of a comparison in all its processes."""

from __future__ import annotations

import dataclasses
from functools import partial
from io import BytesIO
from typing import Any

from spodgt.record.record import Diverged, Stopped
from spodgt.record.run_folder import parquet
from spodgt.runtimes.world import Runtime
from spodgt.training.comparison import Comparison
from spodgt.training.result import Result


def broadcast_result(comparison: Comparison, runtime: Runtime) -> Result:
    """The result of the process that records, in all processes."""
    import pandas as pd

    from spodgt.record.frames import with_old_names

    result = comparison.result()
    if runtime.processes == 1:
        return result
    facts: dict[str, Any] = {
        "diverged": [dataclasses.asdict(each) for each in result.diverged],
        "stopped": [dataclasses.asdict(each) for each in result.stopped],
        "complete": result.complete,
        "seconds": result.seconds,
    }
    facts = runtime.broadcast_from_main(partial(dict, facts))
    tables = []
    for table in (result.frame, result.participation, result.clients):
        tables.append(runtime.broadcast_bytes(partial(parquet, table)))
    if runtime.is_main:
        return result
    result.frame = with_old_names(pd.read_parquet(BytesIO(tables[0])))
    result.participation = with_old_names(pd.read_parquet(BytesIO(tables[1])))
    result.clients = with_old_names(pd.read_parquet(BytesIO(tables[2])))
    result.diverged = [Diverged.from_dict(each) for each in facts["diverged"]]
    result.stopped = [Stopped(**each) for each in facts["stopped"]]
    result.complete = facts["complete"]
    result.seconds = facts["seconds"]
    return result
