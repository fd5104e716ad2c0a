"""Every table and figure that a module defines is registered, by its name."""

from importlib import import_module
from pkgutil import iter_modules

import pytest

from harness.report import figures, sections, tables
from harness.report.figures.kinds import FigureKind, figure_kinds
from harness.report.sections import TableKind, table_kinds

pytestmark = pytest.mark.fast


@pytest.mark.parametrize(
    ("package", "kind", "registered"), [(tables, TableKind, table_kinds), (figures, FigureKind, figure_kinds)]
)
def test_a_kind_that_a_module_defines_is_in_every_report(package, kind, registered):
    """Would catch a table or figure that is written and never made, and two whose files replace each other."""
    defined = []
    for item in iter_modules(package.__path__):
        values = vars(import_module(f"{package.__name__}.{item.name}")).values()
        several = [each for value in values if isinstance(value, tuple) for each in value]
        defined += [value for value in [*values, *several] if isinstance(value, kind)]
    assert {id(item) for item in defined} == {id(item) for item in registered()}
    names = [item.name for item in registered()]
    assert len(names) == len(set(names)) > 5


def test_a_kind_under_another_name_is_told(monkeypatch):
    """Would catch files that are written under one name and, as a report's own, looked for under another."""
    monkeypatch.setitem(sections.TABLES, "other", sections.TABLES["summary"])
    with pytest.raises(AssertionError, match="is called summary, not other"):
        table_kinds.__wrapped__()
