"""What other methods would have accepted of recorded drafts, as tables and a figure."""
