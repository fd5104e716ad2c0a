"""Sampling core of Rejection Lab."""
