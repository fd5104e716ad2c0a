"""The engine of a cell: how its settings follow from the cell's, which cells can share one, and what it keeps.

This module knows models and engines; it does not know conversations.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from torch import Tensor

from harness.backends.local.cell_memory import CacheBytes, CellMemory, cell_memory
from harness.backends.local.model_store import Models, StoredModels
from harness.config.cell import CellConfig
from harness.config.constraint import AnswerConfig, GrammarConfig
from harness.config.depth import PLANNER
from harness.config.device import resolve_graphs
from harness.config.identity import key_without
from harness.config.imported import ImportPath
from harness.config.sections import LogprobsMode
from harness.config.tree import DynamicTree
from harness.drafters.chain import DrafterShape
from harness.drafters.draft_model_run import DraftModelDrafter
from harness.drafters.own_drafter import OwnDrafter
from harness.drafters.registry import LoadedHead, build_drafter, check_capture
from harness.engine.depth import Depth, DepthByBatch
from harness.engine.engine import Engine
from harness.engine.planner import Planner
from harness.engine.request import Limits
from harness.engine.settings import EngineSettings, draft_slack
from harness.engine.token_logprobs import LogprobsSettings
from harness.models.fingerprint import fingerprint
from harness.models.fused.tree_rows import MAX_NODES
from harness.models.meta import WithoutValues
from harness.models.target import TargetModel
from kernels.core import Core, reference_core, triton_core
from kernels.methods.hooks import runs_on_kernels


def depth_of(cell: CellConfig) -> Depth | None:
    """What chooses the depth of the cell's steps, over all of its turns; None where every round drafts K tokens."""
    drafting = cell.drafting
    if cell.is_baseline or cell.drafts_tree:
        return None
    if drafting.depth == PLANNER:
        return Planner(drafting.num_speculative_tokens, drafting.times)
    return None if drafting.depths is None else DepthByBatch(drafting.depths)


def _own_drafter(cell: CellConfig, target: TargetModel) -> OwnDrafter | None:
    """What the drafts of a cell must fit, if its drafter is the user's own."""
    if not isinstance(cell.drafter.kind, ImportPath):
        return None
    return OwnDrafter(cell.drafter.kind.value, cell.draft_sampling, target.vocab_size)


def _check_trees(cell: CellConfig, models: Models) -> None:
    """Raise ValueError where the target or the draft model of a cell reads no trees."""
    loaded = models.head(cell.drafter)
    draft_model = loaded.head if loaded is not None and isinstance(loaded.head, TargetModel) else None
    for owner, model in (("target", models.target), ("draft model", draft_model)):
        if model is not None and model.tree_obstacle is not None:
            raise ValueError(
                f"drafting.tree: expected chains (null) with the {owner} {model.name}, because {model.tree_obstacle}, "
                f"found {cell.drafting.tree}"
            )


def _check_fused_trees(cell: CellConfig, models: Models) -> None:
    """Raise ValueError where fused layers of the target or of the drafter cannot read the trees of a cell."""
    loaded, shape = models.head(cell.drafter), cell.drafting.tree_shape
    drafter = None if loaded is None else loaded.head
    for owner, model in (("target", models.target), ("drafter", drafter)):
        if model is not None and model.is_fused and model.has_latent_attention:
            found = "true" if cell.local.fused else "null, which fuses layers on this device"
            raise ValueError(
                f"backend.fused: expected false with drafting.tree={cell.drafting.tree}, because the {owner} has "
                f"latent attention, whose fused operations run chains only, found {found}"
            )
    num_read = shape.num_read if isinstance(shape, DynamicTree) else 0
    if drafter is not None and drafter.is_fused and num_read > MAX_NODES:
        raise ValueError(
            f"drafting.tree: expected at most {MAX_NODES} nodes, (DEPTH - 1) * WIDTH, that fused layers of a drafter "
            f"read, found {num_read} in {cell.drafting.tree}; make it less deep or wide, or use backend.fused=false"
        )


@dataclass
class _Kept:
    """The engine of one or several cells between their turns."""

    engine: Engine | None = None
    masses: list[Tensor] = field(default_factory=list)
    """SharedRows.mass of every engine that was made."""


def _digest(random_fingerprint: str | None, folder: Path | None) -> str:
    """What identifies a model: a checkpoint by its files."""
    if random_fingerprint is not None:
        return random_fingerprint
    assert folder is not None, "weights are random, or come from a folder"
    return fingerprint(folder)


class EngineOfCell:
    """Builds the engine of one cell for each of its turns, or keeps it where it is costly to make."""

    def __init__(self, cell: CellConfig, models: StoredModels) -> None:
        self._cell = cell
        self._models = models
        self._kept = _Kept()
        self._limit, self._cuts = 0, frozenset[bool]()
        self._num_fixed_tokens: int | None = None
        self._depth = depth_of(cell)
        self.cache_bytes = CacheBytes()
        self.num_drafter_parameters = 0
        self.aux_layers: tuple[int, ...] = ()
        self.sampling_core: str | None = None
        check_capture(cell.drafter, self.uses_graphs, models.loaded.device)
        if self.is_off_kernels and self.uses_graphs:
            raise ValueError(
                "backend.graphs: expected false with a verification method of your own without hooks, whose reference "
                f"core CUDA graphs cannot hold, found true with verification.method={cell.verification.method.value}"
            )
        if cell.drafts_tree:
            _check_trees(cell, models.meta_models)
            _check_fused_trees(cell, models.meta_models)
        self.draft_core: str | None = None
        """The engine's core draws the drafts too; None for a drafter without a network."""

    def set_limit(
        self, num_tokens: int, cuts: frozenset[bool] = frozenset(), num_fixed_tokens: int | None = None
    ) -> None:
        """Tokens of prompt and output that a slot holds, and whether requests cut their distribution, of all of them;
        for `num_fixed_tokens` see EngineSettings. Forgets the engine that was kept."""
        self._limit, self._cuts, self._kept = num_tokens, cuts, _Kept()
        self._num_fixed_tokens = num_fixed_tokens

    @property
    def num_speculative_tokens(self) -> int:
        return 0 if self._cell.is_baseline else self._cell.drafting.num_speculative_tokens

    @property
    def runs_own_method(self) -> bool:
        """Whether it verifies by a method of the user's own."""
        return "verification.method" in self._cell.imported

    @property
    def is_off_kernels(self) -> bool:
        """Whether the reference core verifies though there is a GPU: by a method of the user's own without hooks."""
        is_on_gpu = self._models.loaded.device.type == "cuda"
        return is_on_gpu and self.runs_own_method and not runs_on_kernels(self._cell.verification.method)

    @property
    def runs_own_objects(self) -> bool:
        """Whether anything of the cell is the user's own."""
        return bool(self._cell.imported)

    @property
    def keeps_nothing(self) -> bool:
        """Whether no block finds anything of the one before: no captured step, compiled kernel, grammar, observed
        acceptance or object of the user."""
        on_cpu = self._models.loaded.device.type == "cpu" and not self.uses_graphs
        keeps = self._depth is not None or isinstance(self._cell.constraint, GrammarConfig) or self.runs_own_objects
        return on_cpu and not keeps

    @property
    def uses_graphs(self) -> bool:
        """Whether its steps have fixed sizes, captured as CUDA graphs on a GPU."""
        return resolve_graphs(self._cell.local.graphs, self._models.loaded.device)

    @property
    def shared_mass(self) -> tuple[float | None, int]:
        """See CellRecord, so far, and of how many draft rows; waits for the device."""
        total, num_rows = (float(sum(mass[index] for mass in self._kept.masses)) for index in (0, 1))
        return (total / num_rows if num_rows else None), round(num_rows)

    @property
    def graph_bytes(self) -> int:
        """Memory of the CUDA graphs, once something was run; 0 without them."""
        return 0 if self._kept.engine is None else self._kept.engine.graph_bytes

    @property
    def memory(self) -> CellMemory:
        """What the cell will keep on its device, counted before anything is loaded."""
        meta_models = self._models.meta_models
        with WithoutValues():
            engine = self._build(meta_models.target, meta_models.head(self._cell.drafter))
        return cell_memory(self._models, self._cell.drafter, engine, is_kept=self.uses_graphs)

    def rehearse_on_meta(self) -> None:
        """Launch on the meta device, where nothing is computed, what capturing the cell's steps launches on a GPU."""
        meta_models = self._models.meta_models
        target, head = meta_models.target, meta_models.head(self._cell.drafter)
        draft_model = None if head is None or head.is_of_target else head.head
        engine = self._build(target, head, triton_core())
        with target.rehearsed(), draft_model.rehearsed() if isinstance(draft_model, TargetModel) else nullcontext():
            engine.rehearse_on_meta()

    @cached_property
    def weights(self) -> Mapping[str, str]:
        """Digest of each model, by role: of its files, config.json among them, or of what random ones follow from."""
        models = self._models.meta_models
        head = models.head(self._cell.drafter)
        found = {"target": _digest(models.target.random_fingerprint, models.target.path)}
        return (
            found
            if head is None or head.is_of_target
            else found | {"drafter": _digest(head.random_fingerprint, head.folder)}
        )

    @property
    def steps(self) -> str:
        """Everything that its steps follow from, beside the code: equal for cells whose steps launch the same."""
        settings = key_without(self._cell, "workload", "seed", "constraint")
        built_for = f"{self._limit} {sorted(self._cuts)} {self._num_fixed_tokens} {self._is_constrained}"
        return f"{settings} {self.weights} {built_for}"

    @property
    def key(self) -> object:
        """Cells of equal keys can have one engine: those that keep it, and differ in their constraint alone."""
        if not self.uses_graphs:
            return self
        built_for = self._limit, self._cuts, self._num_fixed_tokens, self._is_constrained
        return key_without(self._cell, "constraint"), built_for

    def share(self, other: EngineOfCell) -> None:
        """Have one engine with another cell from here on; both have their limits and equal keys."""
        assert self.key == other.key and self._kept.engine is None
        self._kept = other._kept

    def engine(self) -> Engine:
        """The engine of the next block: kept where it is costly to make, else made anew, so that the cells of a sweep
        do not hold the memory of all their caches at once."""
        loaded = self._models.loaded
        engine = self._kept.engine
        if engine is None:
            engine = self._build(loaded.target, loaded.head(self._cell.drafter))
            if isinstance(engine.drafter, DraftModelDrafter) and engine.drafter.shared is not None:
                self._kept.masses.append(engine.drafter.shared.mass)
        self._kept.engine = engine if self.uses_graphs else None
        self.sampling_core, self.cache_bytes = engine.core.name, CacheBytes.of(engine)
        self.num_drafter_parameters = engine.drafter.num_parameters
        self.aux_layers = tuple(engine.drafter.aux_layers)
        self.draft_core = None if loaded.head(self._cell.drafter) is None else engine.core.name
        return engine

    def forget(self) -> None:
        """Let go of an engine that was stopped in the middle of its requests; the next turn gets a new one."""
        self._kept.engine = None

    @property
    def _is_constrained(self) -> bool:
        """Whether its engine is made for requests with grammar states.

        Graphs are so for the policy none too, whose requests have none: what it is compared with runs on the same
        engine then, and not on one whose graphs and caches lie elsewhere, which alone moves times by 1 %.
        """
        return isinstance(self._cell.constraint, AnswerConfig if self.uses_graphs else GrammarConfig)

    def _build(self, target: TargetModel, loaded_head: LoadedHead | None, core: Core | None = None) -> Engine:
        cell, num_tokens, num_slots = self._cell, self.num_speculative_tokens, self._cell.backend.max_concurrency
        has_drafts, has_terms = not cell.is_baseline, not cell.is_baseline and not cell.drafts_tree
        tree = cell.drafting.tree_shape if cell.drafts_tree else None
        capacity = self._limit + draft_slack(num_tokens, tree, self.uses_graphs)
        shape = DrafterShape(num_slots, capacity, num_tokens, target.vocab_size)
        drafter = build_drafter(cell, target, loaded_head, shape)
        decoding = cell.decoding
        settings = EngineSettings(
            num_slots=num_slots,
            capacity=capacity,
            num_speculative_tokens=num_tokens,
            sampling=decoding.sampling,
            truncates=True in self._cuts if self._cuts else None,
            is_mixed=len(self._cuts) > 1,
            num_fixed_tokens=self._num_fixed_tokens,
            logprobs=None
            if decoding.logprobs is None
            else LogprobsSettings(decoding.logprobs, decoding.logprobs_mode is LogprobsMode.processed),
            verification=cell.verification.at(num_tokens),
            limits=Limits(decoding.max_new_tokens, frozenset() if decoding.ignore_eos else target.eos_token_ids),
            graphs=self.uses_graphs,
            expected_acceptance=cell.measurement.expected_acceptance and has_drafts,
            constrained=self._is_constrained,
            round_terms=cell.measurement.round_terms and has_terms,
            multi_draft_terms=cell.measurement.multi_draft_terms and has_terms and cell.has_draft_cache,
            drafts_trees=cell.drafts_tree,
            own_drafter=_own_drafter(cell, target),
            prompt_tokens_beside_rounds=cell.local.prompt_tokens_beside_rounds,
        )
        is_on_cpu = self._models.loaded.device.type == "cpu"
        if self.is_off_kernels or (self.runs_own_method and is_on_cpu):
            core = reference_core()
        return Engine(target, drafter, settings, core, self._depth)
