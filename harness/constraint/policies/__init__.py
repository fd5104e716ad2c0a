"""What is done about the answer tokens of the round in which reasoning ends, one policy a file."""
