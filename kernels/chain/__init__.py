"""A round of chains: rows are reduced, drafts accepted and counted, the next token is drawn."""
