"""Who proposes tokens: one protocol, one file per way of proposing; knows no requests and no text."""
