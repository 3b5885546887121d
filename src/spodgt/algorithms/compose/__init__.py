"""Layers around a method: schedules, momentum, Adam, clipping, weight decay and local steps."""
