"""Discrete-event simulation ("virtual time"): gradients and messages take seconds of a simulated clock."""
