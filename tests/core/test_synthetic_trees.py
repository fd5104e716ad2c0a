"""`verification=synthetic` with `drafting.tree`: what is refused, whose identity it changes, a run of the engine."""

import csv
from itertools import accumulate
from operator import mul
from pathlib import Path

import pytest

from experiments import run as command
from harness.config.identity import determinants
from harness.config.tree import branching, most_children
from harness.config.usage import normal_form
from harness.records.files import identity, read_cell
from harness.runner.plan.compose import compose_plan
from kernels.methods.acceptance_profiles import TREE_PROFILES, AcceptanceProfile
from tests.support.tiny_shapes import shape_folder

DRAFTS = ("drafter=eagle3", "verification=synthetic")
NONE, PROFILE = "verification.tree_rates=[]", "verification.profile=zoo_eagle3_t1"
TABLE = Path(__file__).parents[2] / "results" / "zoo_tree_children" / "tables" / "tree_children.csv"
"""What the profiles of trees are copied from."""


def cells(*arguments):
    """Those with a drafter."""
    return [cell for cell in compose_plan([*DRAFTS, *arguments]).cells if not cell.is_baseline]


def test_one_sweep_has_rates_of_chains_and_of_trees():
    """Each cell keeps its own. Would catch a chain whose identity depends on rates of trees."""
    chain, tree = cells("drafting.tree=null,2-2", "verification.tree_rates=[[0.7,0.1],[0.6]]")
    assert chain.verification.rule.tree_rates == () and len(chain.verification.rule.rates) == 4
    assert tree.verification.rule.rates == () and tree.verification.rule.tree_rates == ((0.7, 0.1), (0.6,))
    assert normal_form(chain) == normal_form(cells()[0])
    assert tree.verification.at(6).rule.tree_rates == ((0.7, 0.1), (0.6,))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("drafting.tree=2-2 verification.tree_rates=[[0.7,0.4]]", "whose sum is at most 1, found .0.7, 0.4."),
        ("verification.tree_rates=[[0.5]]", "used only with .* drafting.tree, such as"),
        ("drafting.tree=2-2 verification.rates=[0.5]", "used only with .* without drafting.tree"),
        (f"drafting.tree=2-2 {NONE}", "expected rates of trees .*, found those of chains; give .*tree_rates"),
        ("verification.rates=[]", "found rates of trees and drafting.tree=null; give .*rates"),
        ("drafting.tree=2-2 verification.profile=round_eagle_k3 verification.rates=[]", "for trees or for"),
        (
            f"drafting.tree=2-2 {PROFILE}",
            "found rates, tree_rates, profile; clear the others",
        ),
        (f"{PROFILE} {NONE}", "profile=zoo_eagle3_t1 holds for trees or for chains alone, found a chain"),
        (f"drafting.tree=5 {PROFILE} {NONE}", "fewer depths or children than the tree"),
        (f"drafting.tree=dynamic:20-9-3 {PROFILE} {NONE}", "fewer depths or children"),
        ("drafting.tree=2-2 drafting.sampling=coupled", "drawn with noise of its own"),
    ],
)
def test_rates_that_do_not_fit_the_drafts_are_refused(arguments, message):
    """Would catch rates of chains that a tree takes for its own, and the reverse."""
    with pytest.raises(ValueError, match=message):
        cells(*arguments.split())


@pytest.mark.parametrize("profile", TREE_PROFILES, ids=lambda profile: profile.value)
def test_a_profile_of_trees_is_a_copy_of_the_measured_table(profile):
    """Wide trees tell the first two depths, deep ones the others. Would catch a rate that was mistyped, of another
    drafter, temperature or shape, and a number of walks that is not its own."""
    drafter, temperature = profile.value.removeprefix("zoo_").split("_t")
    found = {}
    for row in csv.DictReader(TABLE.open(encoding="utf-8")):
        depth = int(row["depth"])
        is_chosen = row["tree"] == ("4-3-1" if depth <= 2 else "1-2-2-2-1-1")
        if is_chosen and (row["drafter"], row["T"]) == (drafter, temperature):
            share = float(row["acceptance of the child (%)"].split()[0]) / 100
            found.setdefault(depth, (int(row["walks at its parent"]), []))[1].append(share)
    named = TREE_PROFILES[profile]
    assert [walks for walks, _ in found.values()] == list(named.num_walks)
    for (_, shares), rates in zip(found.values(), named.rates, strict=True):
        assert list(rates) == pytest.approx(shares, abs=5.1e-4)
    assert all(
        words in profile.source for words in ("experiment=tree_children", "built-in models", f"T = {temperature}")
    )


def test_a_profile_of_trees_is_its_rates():
    """Would catch two records of cells that cannot differ, and a profile that does not reach the core."""
    named = f"drafting.tree=2-2 {PROFILE} {NONE}".split()
    rates = [list(level) for level in TREE_PROFILES[AcceptanceProfile.zoo_eagle3_t1].rates]
    (by_name,), (by_rates,) = cells(*named), cells("drafting.tree=2-2", f"verification.tree_rates={rates}")
    assert by_name.verification.at(6) == by_rates.verification.at(6)
    assert identity(determinants(by_name, "p", {})) == identity(determinants(by_rates, "p", {}))


def test_the_experiment_of_trees_and_chains_has_the_rates_of_one_profile():
    """Its sweep cannot name the profile, which is of trees alone. Would catch a copy that is not up to date."""
    found = [cell for cell in compose_plan(["experiment=trees_llama3_8b"]).cells if not cell.is_baseline]
    levels = TREE_PROFILES[AcceptanceProfile.zoo_eagle_t1].rates
    of_chains = list(accumulate((level[0] for level in levels), mul))
    assert any(cell.drafts_tree for cell in found) and any(not cell.drafts_tree for cell in found)
    for cell in found:
        if cell.drafts_tree:
            assert cell.verification.rule.tree_rates == levels
        else:
            rates = cell.verification.at(cell.drafting.num_speculative_tokens).rule.rates
            assert rates == pytest.approx(of_chains[: len(rates)], abs=5e-4)


def test_the_most_children_of_a_depth():
    """Would catch children that are counted by place, where nodes do not lie level by level."""
    assert most_children(branching(4, 3, 1)) == [4, 3, 1]
    assert most_children((-1, 0, -1, 1, 2, 2, 3)) == [2, 2, 1, 1]


def test_the_engine_accepts_what_the_rates_say(tmp_path):
    """Random weights: rates of 0 and 1 leave one path, the context's second child and its first one, whose child is
    never accepted. Would catch rates that do not reach the core, a path that is not kept in the caches, and a record
    without its label."""
    arguments = [
        "experiment=throughput_llama3_8b",
        f"target.path={shape_folder(tmp_path / 'tiny')}",
        "target.shape=null",
    ]
    arguments += ["target.name=tiny", "drafting.tree=2-2-1", "verification.profile=null", "workload.num_requests=3"]
    arguments += ["workload.prompt_tokens=9", "decoding.max_new_tokens=10", "measurement.num_warmup_requests=0"]
    arguments += ["verification.tree_rates=[[0,1],[1],[0]]", f"output.folder={tmp_path / 'run'}"]
    assert command.main([*arguments, "backend.device=cpu", "measurement.baseline=false", "--format", "md"]) == 0
    (path,) = (tmp_path / "run" / "cells").iterdir()
    record = read_cell(path)
    assert record.labels == ("synthetic", "weights: random")
    assert record.config["verification"]["tree_rates"] == [[0, 1], [1], [0]]
    rounds = [item for request in record.requests for item in request.rounds if item.num_proposed_tokens]
    # of 10 tokens the prefill gives one, and each round three
    assert len(rounds) == 9 and {item.path for item in rounds} == {(1, 4)}
    assert {item.num_accepted_tokens for item in rounds if item.num_draft_tokens == 10} == {2}
    methods = next((tmp_path / "run" / "tables").glob("methods.md")).read_text(encoding="utf-8")
    assert "synthetic(tree_rates=0/1 1 0)" in methods and "drafts were accepted at given rates" in methods
