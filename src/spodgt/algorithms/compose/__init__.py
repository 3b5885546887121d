"""Layers around a method: schedules, momentum, Adam, clipping, local steps, running means."""
