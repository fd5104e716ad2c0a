"""Synthetic acceptance of trees: the law of the path in the reference, settings, and a run of the engine."""

import csv
from itertools import accumulate
from math import log
from operator import mul
from pathlib import Path

import pytest
import torch

from experiments import run as command
from harness.config.identity import determinants
from harness.config.tree import Tree, branching, depths_of, most_children
from harness.config.usage import normal_form
from harness.records.files import identity, read_cell
from harness.runner.plan.compose import compose_plan
from kernels import custom_ops
from kernels.contract import Draft, Sampling, Streams, Verification, VerificationMethod
from kernels.methods import TreeMethod
from kernels.methods.acceptance_profiles import TREE_PROFILES, AcceptanceProfile
from kernels.random.streams import uniform
from kernels.reference import synthetic_trees
from kernels.reference.tree_shape import chain_parents
from kernels.reference.verify import verify
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


SYNTHETIC = VerificationMethod.synthetic
RATES = ((0.5, 0.2, 0.1), (0.3, 0.6), (0.7,))
COUNT = 100_000
FALSE_ALARM = 1e-6


def streams_of(count: int) -> Streams:
    seeds = torch.arange(count)
    return Streams(seeds * 7919, seeds % 50, seeds % 7)


def paths_of(shape: Tree, rates: tuple[tuple[float, ...], ...] = RATES) -> torch.Tensor:
    """[COUNT, K] accepted paths of one shape."""
    draft = Draft(
        torch.zeros(COUNT, len(shape), dtype=torch.long),
        torch.full((COUNT,), len(shape)),
        parents=torch.tensor(shape).expand(COUNT, -1),
    )
    plain = Sampling.same_for_all(COUNT, 1.0, 0, 1.0, 0.0)
    rule = Verification(SYNTHETIC, tree_rates=rates)
    found = verify(torch.zeros(COUNT * (len(shape) + 1), 2), draft, plain, rule, streams_of(COUNT))
    assert found.path is not None and not found.invalid.any()
    return found.path


def nodes_with_wrong_rates(shape: Tree) -> list[int]:
    """The draft tokens that are accepted more or less often, among the walks that came to their parent, than their rate
    and Hoeffding's bound at FALSE_ALARM over all of them allow."""
    paths, levels = paths_of(shape), depths_of(shape)
    wrong = []
    for node, (parent, depth) in enumerate(zip(shape, levels, strict=True)):
        rank = sum(other == parent for other in shape[:node])
        rates = RATES[depth - 1] if depth <= len(RATES) else ()
        came = torch.ones(COUNT, dtype=torch.bool) if parent < 0 else paths[:, depth - 2] == parent
        share = float((paths[came, depth - 1] == node).double().mean())
        bound = (log(2 * len(shape) / FALSE_ALARM) / (2 * max(1, int(came.sum())))) ** 0.5
        # NaN where no walk came
        wrong += [node] if abs(share - (rates[rank] if rank < len(rates) else 0.0)) > bound else []
    return wrong


@pytest.mark.parametrize("shape", [branching(2, 2, 1), branching(4, 1), (-1, 0, -1, 0, 2, 3, 5, -1)], ids=str)
def test_each_child_is_accepted_at_its_rate(shape: Tree):
    """Of nodes with more children than rates, and fewer; deeper than there are rates. Would catch rates that are not
    summed up over siblings, the rate of another depth, and a missing child whose rate goes to its siblings."""
    assert nodes_with_wrong_rates(shape) == []


def test_the_law_of_a_broken_walk_is_found_wrong(monkeypatch: pytest.MonkeyPatch):
    """Depths that share one number: what was accepted above decides what is accepted below."""

    def shared(seeds: torch.Tensor, purpose: int, positions: torch.Tensor, rounds: torch.Tensor) -> torch.Tensor:
        return uniform(seeds, purpose, torch.zeros_like(positions), rounds)

    monkeypatch.setattr(synthetic_trees, "uniform", shared)
    assert nodes_with_wrong_rates(branching(2, 2, 1))


def test_with_one_child_a_node_it_accepts_what_it_accepts_of_a_chain():
    """Request by request. Would catch other random numbers than those of a chain, and unconditional rates."""
    count, width, rates = 2000, 4, (0.8, 0.4, 0.3, 0.1)
    draft = Draft(torch.ones(count, width, dtype=torch.long), torch.arange(count) % (width + 1))
    plain, rows = Sampling.same_for_all(count, 1.0, 0, 1.0, 0.0), torch.zeros(count * (width + 1), 3)
    streams = streams_of(count)
    of_chain = verify(rows, draft, plain, Verification(SYNTHETIC, rates=rates), streams)
    conditional = tuple((rate / before,) for before, rate in zip((1.0, *rates), rates, strict=False))
    tree = Draft(draft.token_ids, draft.num_draft_tokens, parents=chain_parents(count, width))
    found = verify(rows, tree, plain, Verification(SYNTHETIC, tree_rates=conditional), streams)
    assert torch.equal(found.num_accepted, of_chain.num_accepted) and len(found.num_accepted.unique()) == 5


@pytest.mark.parametrize(
    "rates", [((0.7, 0.4),), ((0.5,), (-0.1, 0.2)), ((1.1,),), ((0.5,), ())], ids=["sum", "negative", "large", "none"]
)
def test_rates_that_are_no_probabilities_are_refused(rates: tuple[tuple[float, ...], ...]):
    with pytest.raises(ValueError, match="rates in \\[0, 1\\] of a node's children whose sum is at most 1, found"):
        Verification(SYNTHETIC, tree_rates=rates)


def test_rates_of_the_other_shape_of_drafts_are_refused():
    """A tree with rates of chains, a chain with rates of trees, and trees in a custom operation, which has no place for
    rates of trees."""
    plain, streams = Sampling.same_for_all(1, 1.0, 0, 1.0, 0.0), streams_of(1)
    chain = Draft(torch.zeros(1, 2, dtype=torch.long), torch.tensor([2]))
    tree = Draft(chain.token_ids, chain.num_draft_tokens, parents=torch.tensor([[-1, -1]]))
    of_chains = Verification(SYNTHETIC, rates=(0.5, 0.2))
    of_trees = Verification(SYNTHETIC, tree_rates=RATES)
    with pytest.raises(ValueError, match="tree_rates must have the rates of trees"):
        verify(torch.zeros(3, 2), tree, plain, of_chains, streams)
    with pytest.raises(ValueError, match="rates must cover all 2 positions"):
        verify(torch.zeros(3, 2), chain, plain, of_trees, streams)
    with pytest.raises(ValueError, match="expected None, a chain"):
        custom_ops.verify(torch.zeros(3, 2), tree, plain, of_trees, streams)
    with pytest.raises(ValueError, match="expected None, a chain"):
        verify(torch.zeros(3, 2), tree, plain, Verification(VerificationMethod.block), streams)
    none = Verification(TreeMethod.recursive)
    assert verify(torch.zeros(3, 2), tree, plain, none, streams).path is not None
