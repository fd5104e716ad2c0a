"""Runs the cells of a plan in turns and writes them."""
