"""A block of the clients in every process, on `torch.distributed`."""
