"""Tables of a report, one file each."""
