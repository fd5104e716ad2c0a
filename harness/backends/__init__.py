"""Backends: what turns conversations into request records. One interface, one file each."""
