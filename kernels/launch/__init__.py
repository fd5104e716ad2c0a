"""What a launch is given beside its rows: arguments, scratch memory, registers, a barrier of its programs."""
