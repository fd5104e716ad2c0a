"""Reads a checkpoint or runs a network; knows no requests."""
