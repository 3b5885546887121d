"""Gradients of one module for many clients: closed form, vmap, or one client after the other."""
