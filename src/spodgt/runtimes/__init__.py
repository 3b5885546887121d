"""Runtimes: the simulator, several processes, and discrete-event simulation (virtual time).

loop.py            the training loop: advances a `World` until its runs stop
world.py           the interfaces `World` and `Runtime`, and the values they work on
batch.py           several runs as one, and the draws of their active clients and links
batch_round.py     a round as methods see it: gradients, mixing, counters
held_clients.py last_exchange.py  the rows of a process; models between local steps
simulator.py       the `World` with all clients in one process
distributed/       the `World` with a block of clients in every process
events/            the `World` of virtual time
"""
