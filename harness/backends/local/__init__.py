"""Conversations through the engine of this process: requests, models, the engine of a cell and its memory."""
