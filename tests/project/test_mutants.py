"""The list of mutants names code that is there, so that it cannot rot."""

from collections import Counter

import pytest

from tests.support.run_mutants import ROOT, fast_files, mutants, mutated

pytestmark = pytest.mark.fast

LISTED = mutants()


@pytest.mark.parametrize("mutant", LISTED, ids=lambda mutant: mutant["breaks"])
def test_a_mutant_changes_one_place_and_names_fast_tests(mutant: dict):
    source = (ROOT / mutant["file"]).read_text()
    changed = mutated(source, mutant)
    compile(changed, mutant["file"], "exec")
    assert changed != source and set(mutant["tests"]) <= set(fast_files())


def test_the_list_covers_every_package():
    found = Counter(mutant["file"].removeprefix("harness/").partition("/")[0] for mutant in LISTED)
    packages = {path.parent.name for path in (ROOT / "harness").glob("*/__init__.py")} | {"kernels", "experiments"}
    assert len(LISTED) >= 60 and {name for name in packages if found[name] < 2} == set()
