"""Conversations through a server with an OpenAI-compatible interface: what it is asked, what it answers and counts."""
