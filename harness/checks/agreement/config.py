"""The settings of an agreement run. Needs neither Hydra nor torch."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from harness.config.cli.methods import check_methods
from harness.config.device import Device
from harness.config.schema import SettingsError, check_known, check_seed, check_setting
from kernels.methods import TreeMethod, VerificationMethod

MAX_VOCAB_SIZE = 262_144
DTYPES = ("bfloat16", "float16", "float32")
TRUNCATIONS: dict[str, tuple[int, float, float]] = {
    "none": (0, 1.0, 0.0),
    "top-p": (0, 0.95, 0.0),
    "top-k": (50, 1.0, 0.0),
    "min-p": (0, 1.0, 0.05),
    "all": (100, 0.9, 0.02),
}
"""Name -> top-k, top-p, min-p."""
ALL_METHODS = tuple(method.value for method in (*VerificationMethod, *TreeMethod) if not method.traits.greedy_only)


class Candidate(Enum):
    """The core that is compared with the reference."""

    auto = "auto"
    triton = "triton"
    reference = "reference"


@dataclass(frozen=True)
class AgreementConfig:
    """What is compared, on how many decisions, and where the report goes."""

    core: Candidate = Candidate.auto
    """What is compared with the reference. auto is Triton, which needs a GPU. On a CPU triton runs the kernels in
    Triton's interpreter and needs TRITON_INTERPRET=1 (slow); reference, compared with itself, checks the command only.
    """
    device: Device = Device.auto
    """auto takes a GPU where there is one."""
    methods: tuple[str, ...] = ALL_METHODS
    """Verification methods, those of trees among them; PACKAGE.MODULE:NAME is one of your own (methods.Rule)."""
    dtypes: tuple[str, ...] = DTYPES
    """Types of the logits."""
    truncations: tuple[str, ...] = tuple(TRUNCATIONS)
    """What cuts the distributions; all is top-k, top-p and min-p together."""
    temperatures: tuple[float, ...] = (0.7, 1.0)
    """Above 0."""
    decisions: int = 1_200_000
    """At least so many in all, spread evenly over the combinations."""
    vocab_size: int = 128_256
    """Tokens in a row of logits, V."""
    requests: int = 768
    """Requests in a batch."""
    draft_tokens: int = 3
    """Draft tokens of each request, K."""
    law: bool = True
    """Also measure the law of a draw."""
    law_vocab_size: int = MAX_VOCAB_SIZE
    """V of the rows whose law is measured."""
    law_draws: int = 65_536
    """Draws from each row of the law."""
    fuzz: bool = False
    """Compare random calls on one workspace instead of those combinations and the law: shapes up to --vocab-size,
    --requests and --draft-tokens, layouts, parameters, masks, faults and misuse; of --methods alone, or without them
    of all methods, greedy and trees among them."""
    fuzz_cases: int = 10_000
    """Random cases; a draw, a verification, and for some a misused call before it."""
    seed: int = 0
    """All logits and random streams are drawn from it."""
    output: str = "results/runs/agreement"
    """Folder for report.md and agreement.json."""

    @property
    def chain_methods(self) -> list[str]:
        """Those of `methods` that verify chains."""
        return [name for name in self.methods if name not in self.tree_methods]

    @property
    def tree_methods(self) -> list[str]:
        """Those of `methods` that verify trees."""
        return [name for name in self.methods if name in {method.value for method in TreeMethod}]

    def __post_init__(self) -> None:
        methods = [method.value for method in (*VerificationMethod, *TreeMethod)]
        for name, known in (("methods", methods), ("dtypes", DTYPES), ("truncations", TRUNCATIONS)):
            check_setting(bool(getattr(self, name)), name, f"some of {', '.join(known)}", "nothing")
        check_methods(self.methods, methods)
        check_known("dtypes", self.dtypes, DTYPES)
        check_known("truncations", self.truncations, TRUNCATIONS)
        counts = ("decisions", "vocab_size", "requests", "draft_tokens", "law_vocab_size", "law_draws", "fuzz_cases")
        for name in counts:
            check_setting(getattr(self, name) >= 1, name, "1 or more", getattr(self, name))
        for name in ("vocab_size", "law_vocab_size"):
            value = getattr(self, name)
            check_setting(value <= MAX_VOCAB_SIZE, name, f"at most {MAX_VOCAB_SIZE}", value)
        temperatures = list(self.temperatures)
        in_range = bool(temperatures) and all(0 < each < 100 for each in temperatures)
        check_setting(in_range, "temperatures", "numbers in (0, 100)", temperatures)
        if "greedy" in self.methods:
            raise SettingsError("--methods: greedy decides nothing at a temperature above 0; leave it out")
        check_seed(self.seed)
        check_setting(bool(self.output), "output", "a folder", "nothing")
