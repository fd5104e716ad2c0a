"""Named acceptance profiles for `verification=synthetic`: how many drafts survive at each position, and who says so.

A rate of a chain is unconditional: the share of the drafts of K tokens that accept at least so many. Such a profile
holds for its own K only, because the rate of a position depends on K. A rate of a tree is conditional: the share of the
walks at a node of one depth that go on to its first child, its second one and so on; such a profile holds for trees no
deeper and no wider, and overstates trees, since less is accepted behind a later child than behind a first one. Knows
neither torch nor Hydra.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple


class Rates(NamedTuple):
    """What a profile stands for."""

    rates: tuple[float, ...]
    """Unconditional acceptance rate of positions 1..K, not increasing."""
    source: str
    """Where the rates come from, in words that a table can print."""


class TreeRates(NamedTuple):
    """What a profile of trees stands for."""

    rates: tuple[tuple[float, ...], ...]
    """For each depth those of a node's first child, second child and so on, given that the walk came to the node."""
    num_walks: tuple[int, ...]
    """Walks that came to a node of each depth, of which the rates are shares."""
    source: str
    """Where the rates come from, in words that a table can print."""


class AcceptanceProfile(Enum):
    """Names of the profiles: `vllm` as published, `derived` computed from that, `round` stated by no publication,
    `zoo` measured with the built-in models."""

    round_eagle_k3 = "round_eagle_k3"
    round_eagle3_k5 = "round_eagle3_k5"
    round_mtp_k3 = "round_mtp_k3"
    derived_glm47_mtp_strict_k3 = "derived_glm47_mtp_strict_k3"
    derived_glm47_mtp_probabilistic_k3 = "derived_glm47_mtp_probabilistic_k3"
    vllm_llama3_8b_eagle_k4 = "vllm_llama3_8b_eagle_k4"
    vllm_llama31_8b_eagle3_k3 = "vllm_llama31_8b_eagle3_k3"
    vllm_qwen3_8b_eagle3_k3 = "vllm_qwen3_8b_eagle3_k3"
    zoo_eagle_t0 = "zoo_eagle_t0"
    zoo_eagle_t1 = "zoo_eagle_t1"
    zoo_eagle3_t0 = "zoo_eagle3_t0"
    zoo_eagle3_t1 = "zoo_eagle3_t1"

    @property
    def is_of_trees(self) -> bool:
        """Whether it is of trees, and not of chains."""
        return self in TREE_PROFILES

    @property
    def rates(self) -> tuple[float, ...]:
        """Of chains; empty for a profile of trees."""
        return () if self.is_of_trees else PROFILES[self].rates

    @property
    def tree_rates(self) -> tuple[tuple[float, ...], ...]:
        """Of trees; empty for a profile of chains."""
        return TREE_PROFILES[self].rates if self.is_of_trees else ()

    @property
    def num_speculative_tokens(self) -> int:
        """K, the draft tokens of a round that a profile of chains holds for."""
        return len(self.rates)

    @property
    def source(self) -> str:
        return TREE_PROFILES[self].source if self.is_of_trees else PROFILES[self].source


_ROUND = "round figures of the usual size, stated by no publication"
_LATER_POSITIONS = (
    "position 1 as published, taken to be the first draft token; positions 2 and 3 computed: the one conditional "
    "rate, 0.2832, that gives the published difference of 6.69 points between the two methods' acceptance rates"
)
_VLLM_TEST = "vLLM's acceptance test (EAGLE3_MODEL_CONFIGS), T = 0, 80 MT-Bench prompts, 256 tokens"

PROFILES = {
    AcceptanceProfile.round_eagle_k3: Rates((0.6, 0.37, 0.23), f"EAGLE, K = 3: {_ROUND}"),
    AcceptanceProfile.round_eagle3_k5: Rates((0.55, 0.3, 0.18, 0.11, 0.06), f"EAGLE-3, K = 5: {_ROUND}"),
    # one layer, trained for the first position, runs three times: the rates fall off steeply
    AcceptanceProfile.round_mtp_k3: Rates((0.7, 0.36, 0.14), f"MTP, K = 3: {_ROUND}"),
    # github.com/vllm-project/vllm/pull/35461; r of 6.69 % * 3 = (28.04 % - 13.32 %) * (1 + r + r^2)
    AcceptanceProfile.derived_glm47_mtp_strict_k3: Rates(
        (0.1332, 0.0377, 0.0107),
        f"GLM-4.7-Flash with MTP, K = 3: strict of vLLM pull request 35461, {_LATER_POSITIONS}",
    ),
    AcceptanceProfile.derived_glm47_mtp_probabilistic_k3: Rates(
        (0.2804, 0.0794, 0.0225),
        f"GLM-4.7-Flash with MTP, K = 3: probabilistic of vLLM pull request 35461, {_LATER_POSITIONS}",
    ),
    # github.com/vllm-project/vllm/pull/46878, its column `main`
    AcceptanceProfile.vllm_llama3_8b_eagle_k4: Rates(
        (0.5392, 0.2651, 0.1277, 0.0612),
        "Llama-3-8B with EAGLE, K = 4: vLLM pull request 46878, T = 1, MT-Bench, 2048 tokens",
    ),
    # github.com/vllm-project/vllm, the test of acceptance lengths among its tests of speculative decoding
    AcceptanceProfile.vllm_llama31_8b_eagle3_k3: Rates(
        (0.7296, 0.5208, 0.3545), f"Llama-3.1-8B with RedHatAI's EAGLE-3, K = 3: {_VLLM_TEST}"
    ),
    AcceptanceProfile.vllm_qwen3_8b_eagle3_k3: Rates(
        (0.6541, 0.3993, 0.2020), f"Qwen3-8B with RedHatAI's EAGLE-3, K = 3: {_VLLM_TEST}"
    ),
}

_ZOO_TREES = (
    "recursive rejection of distinct siblings, measured with the built-in models on 80 prompts "
    "(`rejection-lab run experiment=tree_children`, results/zoo_tree_children): depths 1 and 2 on trees 4-3-1, the "
    "others on trees 1-2-2-2-1-1"
)

TREE_PROFILES = {
    AcceptanceProfile.zoo_eagle_t0: TreeRates(
        (
            (0.672, 0.092, 0.052, 0.029),
            (0.698, 0.095, 0.042),
            (0.728, 0.074),
            (0.718, 0.082),
            (0.794,),
            (0.757,),
        ),
        (999, 739, 430, 316, 238, 173),
        f"EAGLE, T = 0: {_ZOO_TREES}",
    ),
    AcceptanceProfile.zoo_eagle_t1: TreeRates(
        (
            (0.601, 0.092, 0.058, 0.036),
            (0.636, 0.099, 0.04),
            (0.667, 0.071),
            (0.684, 0.084),
            (0.762,),
            (0.722,),
        ),
        (1147, 802, 466, 320, 223, 162),
        f"EAGLE, T = 1: {_ZOO_TREES}",
    ),
    AcceptanceProfile.zoo_eagle3_t0: TreeRates(
        (
            (0.69, 0.106, 0.037, 0.023),
            (0.708, 0.095, 0.03),
            (0.752, 0.074),
            (0.789, 0.065),
            (0.805,),
            (0.737,),
        ),
        (977, 730, 431, 322, 256, 190),
        f"EAGLE-3, T = 0: {_ZOO_TREES}",
    ),
    AcceptanceProfile.zoo_eagle3_t1: TreeRates(
        (
            (0.551, 0.094, 0.04, 0.026),
            (0.62, 0.086, 0.058),
            (0.645, 0.097),
            (0.734, 0.069),
            (0.684,),
            (0.703,),
        ),
        (1324, 811, 442, 304, 228, 145),
        f"EAGLE-3, T = 1: {_ZOO_TREES}",
    ),
}
