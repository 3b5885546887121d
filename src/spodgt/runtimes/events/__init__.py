"""Virtual time: an event-driven runtime in which gradients and messages take seconds."""
