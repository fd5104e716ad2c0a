"""Pairs of chains and trees of one number of draft tokens, and which of them follow the same law."""

from harness.analysis.comparison import comparisons_frame, same_law
from harness.report.blocks import blocks
from harness.report.tables.by_position import differences_table
from harness.report.tables.methods import method_tables, paired_table
from harness.report.verdicts import sentences
from tests.support.synthetic_cells import analysed, drafted


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


def test_the_first_screen_says_which_trees_are_of_one_law():
    """Would catch methods that cannot differ ranked by noise, as where several shapes are swept."""
    shapes, methods = ("2-1", "1-2-1"), ("recursive", "traversal")
    cold = analysed(*(shaped(tree, method, temperature=0.0) for tree in shapes for method in methods))
    for cells in (cold, cold[:2]):
        (block,) = blocks(cells)
        assert "recursive and traversal are equal by law: " in sentences(block)[0]
        assert differences_table(block, "") is None
    others = [shaped("2-1", method, seed=seed) for seed, method in enumerate(methods)]
    greedy = [shaped("2-1", method, "greedy", seed=seed) for seed, method in enumerate(methods, start=2)]
    # numbers that differ by chance are those of one of them
    (of_one_law,) = blocks(analysed(*greedy))
    assert "recursive and traversal are equal by law, as measured with " in sentences(of_one_law)[0]
    (block,) = blocks(analysed(*others, *greedy))
    shown = dict(zip((row[0] for row in differences_table(block, "").texts), block.shown, strict=False))
    assert len(shown) == 3 and len(set(block.names.values())) == 4
    # the reference is the first, recursive on greedy drafts
    rows = {row[0]: row[1] for row in differences_table(block, "").texts}
    assert "same law" in next(text for name, text in rows.items() if name.startswith("traversal, greedy"))
    assert "→" in next(text for name, text in rows.items() if name.startswith("traversal, sampled"))
