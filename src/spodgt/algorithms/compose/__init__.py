"""Layers around a method: schedules, momentum, Adam, clipping, decay, local steps, running means."""
