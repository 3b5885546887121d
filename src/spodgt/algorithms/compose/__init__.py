"""Layers around a method: step size schedules and momentum."""
