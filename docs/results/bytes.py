"""Accuracy against bytes: the default experiment with compressed messages, ten seeds.

    python docs/results/bytes.py [FOLDER]

Writes docs/results/bytes.png and bytes.csv. The run is in FOLDER (runs/bytes) and continues there
after an interruption.
"""

from __future__ import annotations

import sys
from pathlib import Path

import spodgt
from spodgt.record import statistics

HERE = Path(__file__).parent
METHOD = "spod-gt-memory"
SHORT = ("int8", {"kind": "top-k", "share": 0.1}, {"kind": "rand-k", "share": 0.1})


def main() -> None:
    methods = [METHOD, *({"name": METHOD, "compress": kind} for kind in SHORT)]
    experiment = spodgt.Experiment.parse({"run": {"methods": methods, "seeds": 10}})
    out = Path(sys.argv[1] if len(sys.argv) > 1 else "runs/bytes")
    result = spodgt.run(experiment, out=out, resume=(out / "config.toml").exists())
    result.plot(HERE / "bytes.png", against="bytes")
    last = statistics.final(result.frame)
    table = last.groupby("method", sort=False)[["accuracy", "accuracy_average", "bytes"]].mean()
    table["of the bytes"] = table["bytes"] / table.loc[METHOD, "bytes"]
    for one in statistics.paired(last, "accuracy", METHOD):
        table.loc[one.method, ["behind", "low", "high"]] = one.mean, one.low, one.high
    table.to_csv(HERE / "bytes.csv", float_format="%.4g")
    print(table.to_string())


if __name__ == "__main__":
    main()
