"""Grids of experiments: every cell in its own run folder, none of them run twice."""
