"""A block of the clients in every process, on `torch.distributed`.

runtime.py world.py  the `Runtime` and the `World` of one process
client_blocks.py   which process holds which clients, and which rows it sends
mixer.py           mixing calls of a round: what is sent when, and how it is added up
messages.py        rows of several tensors in one buffer per pair of processes (the wire format)
process_group.py   transfers and collective operations, and reports of lost processes
"""
