"""`drafting.tree`: names of shapes, what goes with a tree, the identity of its cells, and what reports call them."""

import json
from dataclasses import replace

import pytest

from harness.analysis.columns import SETTINGS
from harness.config.cell import CellConfig, InvalidCombinationError
from harness.config.drafter import DrafterKind, drafter_of
from harness.config.drafting import DraftingConfig, DraftSamplingChoice, SiblingsChoice
from harness.config.identity import determinants, plain_values
from harness.config.schema import SettingsError
from harness.config.sections import DecodingConfig
from harness.config.tree import DynamicTree, branching, depths_of, is_chain, read_tree, tree_name
from harness.config.usage import normal_form
from harness.config.verification import verification_of
from harness.records.files import identity
from harness.report.cell_names import depth_text, drafts_text
from harness.runner.plan.compose import compose_plan
from kernels.methods import DraftSampling, SiblingDraws, TreeMethod
from tests.support.synthetic_cells import CONFIG, analysed, cell_record, request_record, round_record


def cell(tree="2-2", method="recursive", kind="eagle3", temperature=1.0, num_tokens=4, **drafting):
    return CellConfig(
        drafter=drafter_of(DrafterKind(kind)),
        drafting=DraftingConfig(num_tokens, tree=tree, **drafting),
        decoding=DecodingConfig(temperature=temperature),
        verification=verification_of(method),
    )


@pytest.mark.parametrize(
    ("shape", "parents", "name"),
    [
        ("3", (-1, -1, -1), "3"),
        ("2-2", (-1, -1, 0, 0, 1, 1), "2-2"),
        ("2-1-1", (-1, -1, 0, 1, 2, 3), "2-1-1"),
        ("chain", (-1, 0, 1, 2, 3), "1-1-1-1-1"),
        ("[-1,-1, 0,0,1,1]", (-1, -1, 0, 0, 1, 1), "2-2"),
        ("[-1,0,-1]", (-1, 0, -1), "[-1,0,-1]"),
        ("[-1,-1,0,0]", (-1, -1, 0, 0), "[-1,-1,0,0]"),
    ],
)
def test_a_shape_has_one_name(shape, parents, name):
    """Would catch two cells of one tree, and an uneven tree that is called an even one."""
    assert read_tree(shape, 5, 32) == parents
    assert tree_name(parents) == name and read_tree(name, 5, 32) == parents
    assert is_chain(name) == (shape == "chain")
    given = DraftingConfig(5, tree=shape)
    assert (given.tree, given.num_speculative_tokens, given.tree_shape) == (name, len(parents), parents)


def test_a_dynamic_tree_has_its_bounds_as_a_name():
    """Would catch bounds in another order, and a K that is not the most nodes of a round."""
    given = DraftingConfig(5, tree=" dynamic:16-5-4")
    assert (given.tree, given.num_speculative_tokens) == ("dynamic:16-5-4", 16)
    assert given.tree_shape == DynamicTree(num_nodes=16, depth=5, width=4) and not is_chain(given.tree)


def test_depths_follow_from_parents():
    """Would catch depths by place, where nodes do not lie level by level."""
    assert depths_of(branching(2, 1, 2)) == (1, 1, 2, 2, 3, 3, 3, 3)
    assert depths_of((-1, 0, -1, 1)) == (1, 2, 1, 3)


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ("2x2", "expected chain, the number of children level by level .* found '2x2'"),
        ("2-0-1", "1 or more children at every level, found 0"),
        ("[]", "expected chain"),
        ("9-9", "1 to 32 draft tokens, found 90 in 9-9"),
        ("999999-999999-999999", "1 to 32 draft tokens"),
        ("[-1,2,0]", "found 2 for token 1"),
        ("[-2]", "found -2 for token 0"),
        (str([-1] * 33), "found 33"),
        ("dynamic:8", "expected chain, .* dynamic:NODES-DEPTH-WIDTH .* found 'dynamic:8'"),
        ("dynamic:33-5-8", "1 to 32 draft tokens, found 33"),
        ("dynamic:4-5-2", "DEPTH and WIDTH from 1 to NODES"),
        ("dynamic:8-2-2", "NODES at most WIDTH"),
    ],
)
def test_what_is_no_tree_is_refused(shape, message):
    with pytest.raises(ValueError, match=f"^drafting.tree: .*{message}"):
        DraftingConfig(tree=shape)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"method": "block"},
            "verification=block verifies chains, found drafting.tree=2-2; use .* recursive, kseq",
        ),
        ({"tree": None}, "verification=recursive verifies trees, .* verification=probabilistic, which it is on chains"),
        ({"kind": "suffix"}, "drafter=suffix proposes one token for a position, .* mtp, medusa, draft_model, ngram"),
        ({"kind": "dflash"}, "drafter=dflash proposes one token for a position, .* mtp, medusa, draft_model, ngram"),
        ({"kind": "peagle"}, "drafter=peagle proposes one token for a position, .* mtp, medusa, draft_model, ngram"),
        ({"kind": "ngram"}, "drafter=ngram proposes what it finds, .* use drafting.tree=dynamic"),
        ({"method": "kseq", "siblings": SiblingsChoice.distinct}, "kseq does not take distinct siblings"),
        ({"tree": "dynamic:4-2-2", "sampling": DraftSamplingChoice.sampled}, "so that they are certain and not drawn"),
        ({"tree": "dynamic:4-2-2", "method": "kseq"}, "kseq takes drafts that are drawn, .*=recursive"),
    ],
)
def test_what_does_not_go_with_a_tree_is_refused(changes, message):
    with pytest.raises(InvalidCombinationError, match=message):
        cell(**changes)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("constraint=mask", "drafting.tree=2-2 cannot be followed across the end of reasoning"),
        ("backend=server server=vllm server.url=http://host:1", "does not verify sampled drafts by .*=recursive"),
        ("backend.kind=tests.support.fake_servers:FakeServer", "drafting.tree=2-2 needs backend=local"),
    ],
)
def test_a_tree_runs_in_the_local_engine_alone(settings, message):
    """Would catch a tree that is verified as a chain, or refused for another reason."""
    with pytest.raises(ValueError, match=message):
        compose_plan(["drafter=eagle3", "drafting.tree=2-2", "verification=recursive", *settings.split()])


def test_a_sweep_over_chains_and_trees_has_an_axis_where_a_shape_has_the_setting():
    """Would catch one tree that is counted and refused once for every K."""
    axes = ["drafting.tree=null,2-2", "drafting.num_speculative_tokens=2,4", "drafting.siblings=distinct,independent"]
    given = ["drafter=eagle3", "measurement.baseline=false", "invalid_cells=skip", *axes]
    plan = compose_plan([*given, "verification=probabilistic,recursive"])
    found = [(cell.drafting.tree, cell.drafting.num_speculative_tokens, cell.siblings.value) for cell in plan.cells]
    assert found == [(None, 2, "distinct"), (None, 4, "distinct"), ("2-2", 6, "distinct"), ("2-2", 6, "independent")]
    left = [point for point, reason in plan.skipped if "verifies chains" in reason]
    assert [sorted(point) for point in left] == [["drafting.siblings", "drafting.tree", "verification"]] * 2


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("drafting.depth=2,3 drafting.num_speculative_tokens=5", "expected K in one place, found 5 here and numbers"),
        (
            "drafting.tree=2-2 drafting.depth=4",
            r"drafting\.depth: .* used only without drafting\.tree, since a tree has",
        ),
        ("drafting.siblings=distinct", r"drafting\.siblings: .* used only with drafting\.tree, such as"),
    ],
    ids=["K and depth", "a depth of a tree", "siblings of a chain"],
)
def test_a_setting_that_nothing_keeps_is_refused(settings, message):
    """Would catch a K that a depth takes the place of, unsaid."""
    method = "recursive" if "tree=" in settings else "probabilistic"
    with pytest.raises(SettingsError, match=message):
        compose_plan(["drafter=eagle3", f"verification={method}", *settings.split()])
    both = ["drafter=eagle3", "drafting.depth=2,planner", "drafting.num_speculative_tokens=5"]
    assert [cell.drafting.num_speculative_tokens for cell in compose_plan(both).cells[1:]] == [2, 5]


@pytest.mark.parametrize("method", TreeMethod, ids=lambda item: item.value)
def test_a_tree_needs_no_settings_of_its_own_on_a_gpu(method):
    """Would catch trees that are refused where steps run as CUDA graphs and layers are fused."""
    plan = compose_plan(
        ["drafter=eagle3", "drafting.tree=2-2", f"verification={method.value}", "backend.device=cuda:0"]
    )
    assert all(item.backend.graphs is None and item.backend.fused is None for item in plan.cells)


def ids(*cells):
    return {identity(determinants(item, "prompts", {"target": "t", "drafter": "d"})) for item in cells}


def test_the_tree_is_part_of_the_identity_and_its_names_are_not():
    """Would catch two trees in one record, and one tree that runs twice under two names."""
    chain = cell(None, "probabilistic")
    assert len(ids(chain, cell(), cell("3-1"), cell(siblings=SiblingsChoice.independent))) == 4
    assert len(ids(cell(), cell("[-1,-1,0,0,1,1]"), cell(siblings=SiblingsChoice.distinct), cell(num_tokens=9))) == 1
    assert normal_form(cell(num_tokens=9)) == normal_form(cell())


def test_siblings_are_distinct_unless_the_method_takes_independent_ones_alone():
    """Would catch siblings that `auto` draws in a way that the method does not verify."""
    assert cell().siblings is SiblingDraws.distinct
    assert cell(method="kseq").siblings is SiblingDraws.independent
    assert cell(siblings=SiblingsChoice.independent).siblings is SiblingDraws.independent


def test_the_tokens_of_a_dynamic_tree_are_certain():
    """Would catch a method that compares them with the probability that the drafter gave them."""
    dynamic = cell("dynamic:6-3-2")
    assert dynamic.draft_sampling is DraftSampling.greedy and not dynamic.has_draft_cache
    assert len(ids(dynamic, cell("dynamic:6-2-2"), cell("2-2"), cell("2-2", sampling=DraftSamplingChoice.greedy))) == 4
    assert len(ids(dynamic, cell("dynamic:6-3-2", sampling=DraftSamplingChoice.greedy, num_tokens=9))) == 1


def test_a_sweep_over_shapes_takes_names_and_lists():
    """Would catch a list that sweeps over its numbers, and a tree whose K is not its number of nodes."""
    plan = compose_plan(
        [
            "drafter=eagle3",
            "drafting.tree=chain,2-2,[-1,-1,0]",
            "drafting.num_speculative_tokens=3",
            "verification=recursive",
        ]
    )
    found = [(item.drafting.tree, item.drafting.num_speculative_tokens) for item in plan.cells if not item.is_baseline]
    assert found == [("1-1-1", 3), ("2-2", 6), ("[-1,-1,0]", 3)]


def test_reports_name_the_tree():
    """Would catch two shapes of as many nodes under one name."""
    config = plain_values(cell()) | {key: CONFIG[key] for key in ("guarantee", "device", "dtype")}
    config |= {"draft_sampling": "sampled"}
    rounds = [round_record(0, 0, 0.1), round_record(6, 1, 0.2, path=(1,), num_draft_positions=2)]
    record = cell_record([request_record(rounds)], config=json.loads(json.dumps(config)))
    (found,) = analysed(record)
    assert (found["tree"], found["siblings"], found["num_speculative_tokens"]) == ("2-2", "distinct", 6)
    assert depth_text(found) == "K = 6, tree 2-2"
    assert drafts_text(found) == "sampled drafts, tree 2-2, distinct" and found.drafts == "sampled (tree 2-2, distinct)"
    old = {section: dict(value) if isinstance(value, dict) else value for section, value in CONFIG.items()}
    del old["drafting"]["tree"], old["drafting"]["siblings"]
    (chain,) = analysed(replace(record, config=old, requests=(request_record([round_record(0, 0, 0.1)]),)))
    assert (chain["tree"], chain["siblings"]) == ("", "") and {"tree", "siblings"} <= SETTINGS.keys()
