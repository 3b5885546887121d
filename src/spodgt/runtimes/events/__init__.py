"""Discrete-event simulation ("virtual time"): gradients and messages take simulated seconds."""
