"""The standard protocol: the same prompts, temperatures and depth for every pair, through the engine and its records.

Three kinds of the built-in prompts, first turns, in their order; temperatures 0 and 1; K = 4; verification by the
probabilistic rule. Models are loaded once, for the protocol and for all trials after it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from harness.analysis.cell import CellResult
from harness.analysis.results import read_results
from harness.backends.local.model_store import Models, ModelStore
from harness.config.cell import CellConfig
from harness.config.drafter import DrafterKind
from harness.config.models import Weights
from harness.config.schema import SettingsError
from harness.runner.manifest import Manifest
from harness.runner.plan.compose import compose_plan
from harness.runner.plan.overrides import read_overrides
from harness.runner.plan.run_plan import RunPlan
from harness.runner.progress import Progress
from harness.runner.run_cells import CellRunner
from harness.workload.conversations import Conversation, fingerprint

KINDS = ("writing", "math", "coding")
"""Categories of the built-in prompts."""
NUM_TOKENS = 96
"""Of an answer at most."""
TEMPERATURES = (0.0, 1.0)
DEPTH = 4
SECTIONS = ("target", "drafter", "backend")
"""What a caller may set; the rest is the protocol's."""
ALLOWED = ("workload.thinking", "workload.num_prompts", "decoding.max_new_tokens", "seed")
"""Further settings: with others than the protocol's numbers do not compare with references."""
LOCAL = "local"


@dataclass(frozen=True)
class Protocol:
    """What is run."""

    plan: RunPlan
    is_standard: bool
    """Whether prompts and length are those that references were measured with."""

    @property
    def cell(self) -> CellConfig:
        """At temperature 0."""
        return self.plan.cells[0]

    @property
    def prompts(self) -> str:
        """Their fingerprint."""
        return fingerprint(item.prompt for item in self.conversations)

    @property
    def conversations(self) -> list[Conversation]:
        """One for each prompt."""
        from harness.runner.groups import groups_of

        return groups_of(self.plan.cells)[0].played


def compose(overrides: Sequence[str]) -> Protocol:
    """The protocol for a pair.

    Args:
        overrides: settings of target, drafter and backend.

    Raises:
        SettingsError: wrong settings, others than the protocol leaves open, or no drafter.
    """
    given = read_overrides(overrides)
    for key, item in given.items():
        if key.partition(".")[0] not in SECTIONS and key not in ALLOWED:
            raise SettingsError(
                f"{key} belongs to the protocol, which is the same for all; settings of {', '.join(SECTIONS)} and "
                f"{', '.join(ALLOWED)} may be given"
            )
        if item.is_sweep:
            raise SettingsError(f"{key}: expected one value, found {len(item.values)}; one pair is checked at a time")
    own = {
        "workload": "builtin",
        "workload.categories": f"[{','.join(KINDS)}]",
        "workload.num_turns": "1",
        "workload.shuffle": "false",
        "decoding.temperature": ",".join(f"{item:g}" for item in TEMPERATURES),
        "decoding.max_new_tokens": str(NUM_TOKENS),
        "drafting.num_speculative_tokens": str(DEPTH),
        "verification": "probabilistic",
        "measurement.baseline": "false",
        "measurement.num_warmup_requests": "0",
        "measurement.num_blocks": "1",
        "name": "check_head",
    }
    settings = [f"{key}={value}" for key, value in own.items() if key not in given]
    plan = compose_plan([*settings, *overrides])
    cell = plan.cells[0]
    if cell.drafter.kind is DrafterKind.none:
        raise SettingsError("drafter: expected a drafter to check, found none; name it (check-head TARGET DRAFTER)")
    if cell.backend.kind != LOCAL:
        raise SettingsError(
            f"backend: expected local, whose states and drafts can be looked at, found {cell.backend.kind}"
        )
    changed = set(given) & {"workload.num_prompts", "decoding.max_new_tokens", "seed"}
    if Weights.random in (cell.target.weights, cell.drafter.weights):
        raise SettingsError("expected trained weights of target and drafter, found random ones, which accept nothing")
    return Protocol(replace(plan, cells=tuple(sorted(plan.cells, key=_temperature))), not changed)


def _temperature(cell: CellConfig) -> float:
    return cell.decoding.temperature


@dataclass
class Runs:
    """Runs plans of one pair, on models that are loaded once."""

    progress: Progress
    shared: dict[str, ModelStore] = field(default_factory=dict)

    def models(self, cell: CellConfig) -> Models:
        """The target and its drafters; loaded here, unless they were."""
        store = self.shared.setdefault(LOCAL, ModelStore())
        return store.models(cell.target, cell.local).loaded

    def tokenizers(self, cell: CellConfig) -> list[Any]:
        """The target's tokenizer, of the loaded model and of the one that requests are made by."""
        store = self.shared.setdefault(LOCAL, ModelStore())
        return [models.target.tokenizer for models in reversed(store.models(cell.target, cell.local))]

    def results(self, plan: RunPlan) -> list[CellResult]:
        """The cells of a plan with their metrics, in its order.

        Raises:
            ValueError: one failed.
        """
        with tempfile.TemporaryDirectory(prefix="check_head.") as folder:
            finished: list[str] = []
            path = Path(folder)
            runner = CellRunner(plan, path, self.progress, Manifest(plan, path, finished).add, self.shared)
            # loaded already, and said so
            runner.target = plan.cells[0].target
            self.progress.start(sum(len(group.cells) * group.num_requests_per_cell for group in runner.groups))
            for group in runner.groups:
                runner.run_group(group)
            self.progress.finish()
            found = read_results(path).cells
        failed = [cell.record for cell in found if cell.record.has_failed]
        if failed:
            raise ValueError("; ".join(dict.fromkeys(item.reason for record in failed for item in record.failures)))
        return sorted(found, key=lambda item: float(item["temperature"]))
