"""How long a piece of work takes on this machine, and what the machine can do at best; does not know what is timed."""
