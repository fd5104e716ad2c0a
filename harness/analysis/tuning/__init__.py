"""The best draft depth for each batch size: from measured acceptance and round times to a schedule, and how that does
on held-out load. Knows numbers and records; neither formats of other engines nor how anything is printed.
"""
