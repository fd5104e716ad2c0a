"""Conversations through the engine of this process: requests, the engine of a cell, what both leave."""
