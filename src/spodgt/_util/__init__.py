"""Helpers for text, files, numbers and deprecated names; imports nothing else of the package."""
