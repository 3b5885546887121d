"""Real peers: every client its own process, asynchronous, authenticated, and no mass is ever lost.

    protocol ◀── node ◀── runner ──▶ transport (sockets)
                  │          └─────▶ panel, metrics
                store (disk)

`protocol` and `node` have no clock, socket or file; `docs/peer.md` gives the rules and the measured
failure table. Needs `pip install spodgt[peer]`.
"""
