"""Discrete-event simulation ("virtual time"): gradients and messages take simulated seconds.

durations.py       how long gradients and messages take: the distributions of `[time]`
schedule.py        the event queue: which clients act when, and what they receive
local_rounds.py link_queues.py  the local rounds of clients and the messages on links, for it
activations.py     its result: batches of activations, as data
executor.py        computes these batches, by `activation_round` (a method's own step) or
                   `compiled_tracking` (gradient tracking in compiled loops)
batch_messages.py message_pool.py  mixing of a batch, and the memory of messages in flight
batch_arrays.py    batches as flat arrays, for the compiled loops
world.py           the `World` of the training loop: one executor for each run
"""
