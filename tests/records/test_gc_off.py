"""Garbage collection while records are read and modules imported."""

import gc

import pytest

from harness.records.gc_off import gc_off

pytestmark = pytest.mark.fast


def test_nothing_is_collected_inside_and_what_was_made_there_counts_as_old():
    """Would catch a collector that stays off, and one that visits at once all that was made."""
    with gc_off():
        made = [[]]
        assert not gc.isenabled()
    assert gc.isenabled()
    assert any(item is made for item in gc.get_objects(generation=2))


def test_a_collector_is_on_after_an_error_and_stays_off_where_it_was_off():
    with pytest.raises(KeyError), gc_off():
        raise KeyError
    assert gc.isenabled()
    gc.disable()
    try:
        with gc_off():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
