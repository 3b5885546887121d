"""Compiled loops for gradient tracking in virtual time: batches of activations, in place.

    y = B̂ y;  x = Â x - η y;  then y = y - g, g = 0 if the gradient of an idle client is zero
    y = y + w g⁺ - g;  g = w g⁺ for the clients that compute

`runtimes.events.schedule` defines the batches, `runtimes.events.batch_arrays` the arrays. The plain
equivalent is the method's own `step` on the rows of a batch.
"""

from __future__ import annotations

import numpy as np

from spodgt.engine import compiled_loop
from spodgt.problems.gradients.linear_model import UINT, copy_padded, minibatch_gradient

_BLOCK_SIZE = 2**18  # numbers of the scratch memory of a batch, about


@compiled_loop
def advance_batches(state, pools, arrays, inbox, rule, data, stride, minibatch, weights, scratch):  # type: ignore[no-untyped-def]
    """Run all batches of some arrays, with the gradients of a linear model.

    Args:
        state, pools, arrays, inbox, rule: As for `exchange_batch`.
        data: A `LinearData`.
        stride: Of padded rows.
        minibatch: (samples of a mini-batch, its `chunk_length`).
        weights: (gradients,) factor of each gradient.
        scratch: A `Scratch`.
    """
    x, y, g = state
    models = x.reshape(-1)
    trackers = y.reshape(-1)
    gradients = g.reshape(-1)
    gradient = np.empty(x.shape[1], x.dtype)
    zero = UINT(0)
    for batch in range(len(arrays.offsets.clients) - 1):
        exchange_batch(state, pools, arrays, inbox, rule, batch)
        for n in range(arrays.offsets.gradients[batch], arrays.offsets.gradients[batch + 1]):
            client = arrays.gradients.client[n]
            at = UINT(client) * UINT(x.shape[1])
            copy_padded(models, at, scratch.model, zero, data, UINT(stride), False)
            draw = client, arrays.gradients.key[n], client, 0, minibatch[0], minibatch[1]
            minibatch_gradient(
                scratch.model, zero, scratch.gradient, data, UINT(stride), draw, scratch
            )
            copy_padded(gradient, zero, scratch.gradient, zero, data, UINT(stride), True)
            _replace_gradient(trackers, gradients, at, gradient, x.dtype.type(weights[n]))


@compiled_loop
def exchange_batch(state, pools, arrays, inbox, rule, batch):  # type: ignore[no-untyped-def]
    """Run the exchange of one batch, one block of columns after the other.

    Args:
        state: x, y, g (clients, parameters); changed in place.
        pools: Copies of x and of y that are in flight, by slot.
        arrays: A `BatchArrays`.
        inbox: (clients, parameters) mass for the next activation; no rows if it is not used.
        rule: ((clients,) step sizes, whether the gradient of an idle client is zero).
        batch: Index in the arrays.
    """
    x, y, g = state
    pool_x, pool_y = pools
    step_sizes, zero_if_idle = rule
    first = arrays.offsets.clients[batch]
    count = arrays.offsets.clients[batch + 1] - first
    width = UINT(x.shape[1])
    columns = UINT(max(32, min(512, _BLOCK_SIZE // max(1, count))))
    new_x = np.empty(count * int(columns), x.dtype)
    new_y = np.empty(count * int(columns), x.dtype)
    flat_x = x.reshape(-1)
    flat_y = y.reshape(-1)
    flat_g = g.reshape(-1)
    flat_pool_x = pool_x.reshape(-1)
    flat_pool_y = pool_y.reshape(-1)
    flat_inbox = inbox.reshape(-1)
    clients = arrays.clients
    rows = first, count
    model_reads = arrays.offsets.model_reads[batch], arrays.offsets.model_reads[batch + 1]
    tracker_reads = arrays.offsets.tracker_reads[batch], arrays.offsets.tracker_reads[batch + 1]
    for left in range(UINT(0), width, columns):
        size = min(columns, width - left)
        block = left, width, size
        _receive(
            flat_x,
            flat_pool_x,
            clients,
            arrays.model_self_weight,
            rows,
            arrays.model_reads,
            model_reads,
            new_x,
            block,
        )
        _receive(
            flat_y,
            flat_pool_y,
            clients,
            arrays.tracker_self_weight,
            rows,
            arrays.tracker_reads,
            tracker_reads,
            new_y,
            block,
        )
        # after all reads: slots may be reused
        for n in range(arrays.offsets.model_copies[batch], arrays.offsets.model_copies[batch + 1]):
            client = clients[first + arrays.model_copies.row[n]]
            _copy(flat_pool_x, arrays.model_copies.slot[n], flat_x, client, left, width, size)
        for n in range(
            arrays.offsets.tracker_copies[batch], arrays.offsets.tracker_copies[batch + 1]
        ):
            client = clients[first + arrays.tracker_copies.row[n]]
            _copy(flat_pool_y, arrays.tracker_copies.slot[n], flat_y, client, left, width, size)
        if len(inbox):
            for r in range(count):
                _take_inbox(
                    flat_inbox, clients[first + r], new_y, UINT(r) * size, left, width, size
                )
            # mass of the old trackers for the next activation of other clients
            for n in range(arrays.offsets.deliveries[batch], arrays.offsets.deliveries[batch + 1]):
                to = UINT(arrays.deliveries.receiver[n]) * width + left
                source = UINT(clients[first + arrays.deliveries.row[n]]) * width + left
                weight = x.dtype.type(arrays.deliveries.weight[n])
                for c in range(size):
                    flat_inbox[to + c] += weight * flat_y[source + c]
        for r in range(count):
            client = clients[first + r]
            at = UINT(client) * width + left
            step_size = x.dtype.type(step_sizes[client])
            _step(
                flat_x,
                flat_y,
                flat_g,
                at,
                new_x,
                new_y,
                UINT(r) * size,
                step_size,
                zero_if_idle,
                size,
            )


@compiled_loop
def _receive(own, pool, clients, self_weight, rows, messages, span, new, block):  # type: ignore[no-untyped-def]
    """Compute new = self_weight · own rows + weights · messages.

    Args:
        own: Flat rows of all clients.
        pool: Flat rows of messages in flight.
        clients: (rows,) client of each row of all batches.
        self_weight: (rows,).
        rows: (first row of the batch, number of rows).
        messages: A `MessageReads`.
        span: (first message of the batch, end).
        new: Flat rows of the batch, written.
        block: (first column, width of rows, number of columns).
    """
    first, count = rows
    left, width, size = block
    kind = own.dtype.type
    for r in range(count):
        weight = kind(self_weight[first + r])
        source = UINT(clients[first + r]) * width + left
        to = UINT(r) * size
        for c in range(size):
            new[to + c] = weight * own[source + c]
    for n in range(span[0], span[1]):
        weight = kind(messages.weight[n])
        to = UINT(messages.row[n]) * size
        if messages.in_batch[n]:  # sent in this batch: read the row itself
            source = UINT(clients[first + messages.source[n]]) * width + left
            for c in range(size):
                new[to + c] += weight * own[source + c]
        else:
            source = UINT(messages.source[n]) * width + left
            for c in range(size):
                new[to + c] += weight * pool[source + c]


@compiled_loop
def _copy(target, row, source, client, left, width, size):  # type: ignore[no-untyped-def]
    """Copy a block of columns of a client to a row of the pool."""
    to = UINT(row) * width + left
    at = UINT(client) * width + left
    for c in range(size):
        target[to + c] = source[at + c]


@compiled_loop
def _take_inbox(inbox, client, new, to, left, width, size):  # type: ignore[no-untyped-def]
    """Add the inbox of a client to its new tracker, and empty it."""
    source = UINT(client) * width + left
    for c in range(size):
        new[to + c] += inbox[source + c]
        inbox[source + c] = 0


@compiled_loop
def _step(x, y, g, at, new_x, new_y, new, step_size, zero_if_idle, size):  # type: ignore[no-untyped-def]
    """Take the step of one client along its new tracker."""
    for c in range(size):
        x[at + c] = new_x[new + c] - step_size * new_y[new + c]
    if zero_if_idle:
        for c in range(size):
            y[at + c] = new_y[new + c] - g[at + c]
            g[at + c] = 0
    else:
        for c in range(size):
            y[at + c] = new_y[new + c]


@compiled_loop
def _replace_gradient(y, g, at, gradient, weight):  # type: ignore[no-untyped-def]
    """Replace the gradient of one row: y += weight · gradient - g, then g = weight · gradient."""
    for c in range(UINT(len(gradient))):
        new = weight * gradient[c]
        y[at + c] += new - g[at + c]
        g[at + c] = new
