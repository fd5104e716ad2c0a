"""Columns of a table, as text."""


def column(table, header):
    index = table.header.index(header)
    return {row[0]: row[index] for row in table.texts}


def column_of(table, header):
    return [row[table.header.index(header)] for row in table.texts]
