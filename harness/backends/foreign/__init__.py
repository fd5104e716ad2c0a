"""Reads what other tools say of acceptance, one module a tool, into our sums (`harness.analysis.converted`).

A module says where its field names and definitions were read, and what it was run against; it computes no metric.
"""
