"""What looking for the end of reasoning costs the host per round, at contexts of any length."""
