"""Drafters: who proposes. One protocol, one file for each way of proposing; they know nothing of requests or text."""
