"""Philox streams, and their device twin."""
