"""Peers: every client is its own process, asynchronous and authenticated, and no mass is ever lost.

    options       options of a run, of one process, and of a change of a run
    host          clocks, files and the network as interfaces; crash points of tests
    protocol      running sums, a client's state and local rounds; no clock, socket or file
    storage       commits on disk, backups
    membership    certificates, the signed manifest and its changes, folders of a run
    transport     frames as bytes, connections, streams, access control
    process       one client: start-up, round loop, local computation, upkeep, status
    monitoring    console, Prometheus metrics, web page

`protocol` and `transport` do not depend on `process` and `monitoring`. `membership` does: to make a
run it reads the data of its clients as `process.local_problem` does.

`docs/explanation/peers.md` explains the protocol, `docs/results/peers.md` has the failure table.
Needs the extra `peer`.
"""
