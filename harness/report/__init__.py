"""Numbers -> text, pictures and pages; computes nothing that a notebook could want."""
