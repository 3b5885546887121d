# /// script
# requires-python = ">=3.11"
# dependencies = ["spodgt[peer]", "flwr>=1.22"]
#
# [tool.uv.sources]
# spodgt = { path = "..", editable = true }
# ///
"""The ClientApp of `alone_flower.py` as the local worker of a site: no server, no SuperLink.

    spodgt simulate examples/join_flower.py --clients 4 -- --shard {number}/{clients}

`run_client_app` sends train messages with the model of the site to the app; the steps of its optimizer
are corrected inside the app.
"""

from __future__ import annotations

import argparse

from alone_flower import accuracy, app, load, network

from spodgt.integrations.flower import run_client_app


def main(shard: str = "0/1", steps: int = 600) -> None:
    _, _, test_x, test_y = load(shard)
    model = network()
    run_client_app(
        app,
        "peers/lima",
        model,
        rounds=max(1, steps // 5),
        config={"steps": 5, "lr": 0.1},
        node_config={"shard": shard},
        evaluate_every=2,
        max_silent_blocks=2,
    )
    print(f"test accuracy {accuracy(model, test_x, test_y):.3f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shard", default="0/1", help="NUMBER/COUNT: classes with this remainder")
    parser.add_argument("--steps", type=int, default=600)
    main(**vars(parser.parse_args()))
