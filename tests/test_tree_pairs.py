"""Pairs of chains and trees of one number of draft tokens, and which of them follow the same law."""

from harness.metrics.comparison import comparisons_frame, same_law
from harness.report.console import paired_lines
from harness.report.tables.methods import method_tables, paired_table
from tests.synthetic_cells import analysed, drafted


def shaped(tree, method="recursive", sampling="sampled", **changes):
    """Drafts of four tokens in a tree of this shape; None: a chain that is drafted as one."""
    siblings = {"drafting__siblings": "distinct"}
    return drafted(method, sampling, depth=4, rates=(0.6, 0.5), drafting__tree=tree, **siblings, **changes)


def test_shapes_of_as_many_draft_tokens_are_compared_in_pairs():
    """Would catch a chain that has no pair, a pair of other depth, and a difference with its sides exchanged."""
    shapes = [shaped("dynamic:4-2-2", sampling="greedy"), shaped("2-1", seed=2), shaped(None, "probabilistic", seed=3)]
    cells = analysed(*shapes, drafted("recursive", depth=3, drafting__tree="1-1-1"))
    frame = comparisons_frame(cells).drop_duplicates(["first_cell_id", "second_cell_id"])
    assert list(zip(frame["first_tree"], frame["second_tree"], strict=True)) == [
        ("", "2-1"),
        ("", "dynamic:4-2-2"),
        ("2-1", "dynamic:4-2-2"),
    ]
    assert set(frame["num_speculative_tokens"]) == {4}
    table = paired_table(cells)
    assert [row[table.header.index("drafts")] for row in table.texts] == [
        "sampled (tree 2-1, distinct) / sampled",
        "greedy (tree dynamic:4-2-2) / sampled",
        "greedy (tree dynamic:4-2-2) / sampled (tree 2-1, distinct)",
    ]
    assert len(method_tables(cells)) == 4, "methods stand side by side for one shape"


def test_shapes_are_of_one_law_only_as_chains():
    """At temperature 0 too: trees emit the same tokens there, and accept others of their drafts."""
    for temperature in (0.0, 1.0):
        trees = analysed(*(shaped(tree, temperature=temperature) for tree in ("2-1", "1-1-1-1")))
        assert not same_law(*trees)
        (chain,) = analysed(shaped(None, "probabilistic", temperature=temperature))
        assert same_law(chain, trees[1]) and not same_law(chain, trees[0])


def test_the_terminal_says_which_trees_are_of_one_law():
    """Would catch lines of methods that cannot differ left out without a word, as where several shapes are swept."""
    shapes, methods = ("2-1", "1-2-1"), ("recursive", "traversal")
    cold = analysed(*(shaped(tree, method, temperature=0.0) for tree in shapes for method in methods))
    assert paired_lines(cold) == [
        "same law: these methods of the same K and tree accept with the same probability here"
    ]
    assert paired_lines(cold[:2]) == ["same law: these methods accept with the same probability here"]
    others = [shaped("2-1", method, seed=seed) for seed, method in enumerate(methods)]
    greedy = [shaped("2-1", method, "greedy", seed=seed) for seed, method in enumerate(methods, start=2)]
    differ, alike = sorted(paired_lines(analysed(*others, *greedy)))
    assert differ.startswith("traversal − recursive: length ")
    assert alike == "traversal − recursive: same law"
