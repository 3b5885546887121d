"""Real peers: every client is its own process, asynchronous and authenticated, and no mass is ever lost.

    protocol ◀─ states ◀─ node        the core: no clock, socket or file
    audit                             whether all mass is there
    store                             a client's state on disk
    host ◀─ clock, files, grpc_wire   what a peer uses of its host, and the real clock, disk and wire
    wire ◀─ gate, channel, streams, transport  its links: frames as bytes, rate limits, streams
    identity, manifest, changes       who may take part, what all agree on, its next version
    work                              what the device can do, and its part of the problem
    options, membership, rounds, run  the process: its options, what it follows, its loop, all together
    norms                             outlier detection on message norms
    status, display, metrics_server, watch  what people and programs see of it, and of all
    folders, backup                   commands on folders: make a run, issue, publish, audit, export
    faults, fleet, demo               fault injection, and a demonstration of it

`docs/peer.md` explains the protocol, `docs/peer-results.md` has the failure table. Needs the extra `peer`.
"""
