"""Sweeps (grids of experiments) and tuning of step sizes."""
