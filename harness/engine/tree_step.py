"""A step whose drafts are trees: the target reads all nodes at once, and the accepted path is kept.

After verification the accepted nodes are moved together, in the caches and in what the drafter gets, as if they had
been drafted as a chain. In a step that joins its parts the rows of prompts are trees without branches.

Shapes: as in step.py, with K nodes of a tree of depth D at most, and R rows of prompts in a joined step.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from harness.drafters.protocol import Batch, DraftMasks
from harness.drafters.tree import DraftsTrees, ReadsNodes
from harness.drafters.tree_growth import TreeShape
from harness.engine.decided_row import RowLayout
from harness.engine.slots import DECODES, ENDS_PROMPT, StepInputs
from harness.engine.step import Drafted, Part, Scored, Step, StepOutput, Verified
from harness.models.target import TargetOutput
from harness.models.tree_places import TreePlaces
from kernels.contract import Slots, VerificationResult


@dataclass(frozen=True)
class TreeStep(Step):
    """The parts of a step whose drafter drafts trees of a shape."""

    tree: TreeShape

    @classmethod
    def of(cls, step: Step) -> TreeStep:
        """The same step for trees.

        Raises:
            ValueError: its drafter or its core has no trees.
        """
        drafter = step.drafter
        if not isinstance(drafter, DraftsTrees) or step.core.draw_children is None:
            raise ValueError(
                "expected a drafter of trees and a core that draws them where drafts are trees, found a "
                f"{type(drafter).__name__} and the core {step.core.name}"
            )
        return cls(**vars(step), tree=drafter.tree)

    def draft(self, inputs: StepInputs, masks: DraftMasks | None = None) -> Drafted:
        drafted = super().draft(inputs, masks)
        if drafted.draft.parents is not None:
            return drafted
        # nothing is drafted in a step that only reads prompts: a tree without nodes
        return drafted._replace(draft=replace(drafted.draft, parents=drafted.draft.token_ids))

    def _batch(self, inputs: StepInputs) -> Batch:
        batch = super()._batch(inputs)
        if not self.joins:
            return batch
        # the length is a bound here, and slots have room for all that the drafter reads (draft_slack)
        return replace(batch, length=min(batch.length, self.cache.capacity - self.tree.num_read))

    def _parts(self, inputs: StepInputs, drafted: Drafted) -> list[Part]:
        parts = super()._parts(inputs, drafted)
        if inputs.has_rounds:
            part, num_rows = parts[0], drafted.batch.num_rows
            sees = self.tree.sees_of(drafted.draft)
            if len(part.token_ids) > num_rows:
                sees = torch.cat([sees.expand(num_rows, -1, -1), _chains(part.token_ids[num_rows:])])
            # the first token of a row lies at its position
            starts = part.positions[:, 0]
            places = torch.arange(part.token_ids.shape[1], device=starts.device)
            # places without a token read token 0, which no node sees
            parts[0] = part._replace(
                token_ids=part.token_ids.clamp_min(0),
                positions=(starts.unsqueeze(1) + depths_seen(sees)).contiguous(),
                tree=TreePlaces(starts, places, sees),
            )
        return parts

    def decided(self, verified: Verified, slots: Slots | None = None, of_trees: tuple[Tensor, ...] = ()) -> Tensor:
        path, draft = verified.verdict.path, verified.draft
        assert path is not None
        depths = path if path.shape[1] == 0 else depths_seen(self.tree.sees_of(draft))[..., 1:].expand(path.shape)
        return super().decided(verified, slots, (path, depths, *of_trees))

    def emitting_rows(self, logits: Tensor, verdict: VerificationResult) -> Tensor:
        rows = logits.view(*verdict.token_ids.shape, -1)
        order = _in_order(verdict)
        return rows.gather(1, order[:, :, None].expand(-1, -1, rows.shape[2])).flatten(0, 1)

    def extend(self, inputs: StepInputs, scored: Scored, verified: Verified) -> None:
        """Keep the accepted path in the caches, and give the drafter its tokens and states as those of a chain."""
        if not inputs.has_rounds:
            super().extend(inputs, scored, verified)
            return
        assert isinstance(self.drafter, DraftsTrees)
        verdict, depth, num_rows = verified.verdict, self.tree.depth, inputs.decides.numel()
        assert verdict.path is not None
        if isinstance(self.drafter, ReadsNodes):
            rows = scored.logits.view(num_rows, -1, scored.logits.shape[1])
            counts = (inputs.decides == DECODES) & ~verified.is_undecided
            self.drafter.read_nodes(rows, verdict.num_accepted, counts)
        parts, outputs = _apart(scored.parts, scored.outputs, num_rows)
        part, path, width = parts[0], verdict.path[:, :depth], depth + 1
        starts = part.positions[:, 0]
        self.cache.keep_path(part.rows, starts + 1, path)
        self.drafter.keep_path(part.rows, starts + 1, path)
        order = _in_order(verdict)[:, :width]
        chain = part._replace(
            token_ids=part.token_ids.gather(1, order),
            positions=starts.unsqueeze(1) + torch.arange(width, device=starts.device),
            length=part.length - part.token_ids.shape[1] + width,
            tree=None,
        )
        if inputs.prompts:
            # tokens of prompts are numbered after those of the rounds, which are fewer along the path
            fewer = num_rows * (part.token_ids.shape[1] - width)
            inputs = inputs.with_ends(torch.where(inputs.decides == ENDS_PROMPT, inputs.ends - fewer, inputs.ends))
        in_order = scored._replace(
            parts=[chain, *parts[1:]],
            outputs=[_along(outputs[0], order), *outputs[1:]],
            first=self.cache.slot_ids[:num_rows] * width,
        )
        kept = verified._replace(verdict=replace(verdict, token_ids=verdict.token_ids[:, :width]))
        super().extend(inputs, in_order, kept)


def _apart(parts: list[Part], outputs: list[TargetOutput], num_rows: int) -> tuple[list[Part], list[TargetOutput]]:
    """The rows that may decode and those of prompts as parts of their own, where they were joined in one."""
    part, output = parts[0], outputs[0]
    if len(part.token_ids) == num_rows:
        return parts, outputs
    assert len(parts) == 1 and isinstance(part.rows, Tensor)
    shares = slice(0, num_rows), slice(num_rows, None)
    return (
        [
            part._replace(
                rows=part.rows[share],
                token_ids=part.token_ids[share],
                positions=part.positions[share],
                has_prompts=share.stop is None,
                tree=None,
                groups=None if share.stop is not None or part.groups is None else part.groups._replace(first=0),
            )
            for share in shares
        ],
        [TargetOutput(output.hidden[share], tuple(aux[share] for aux in output.aux)) for share in shares],
    )


def accepted_nodes(output: StepOutput) -> Tensor:
    """[B, K] int64, the nodes of the accepted paths as `TreeStep.decided` left them, -1 beyond."""
    layout = RowLayout.of(output.draft.token_ids.shape[1], of_trees=True)
    return output.decided[:, layout.path]


def depths_seen(sees: Tensor) -> Tensor:
    """[..., T] int64, depth of each token that sees itself and what is above it; 0 is the last of the context."""
    return sees.sum(dim=-1) - 1


def _chains(token_ids: Tensor) -> Tensor:
    """[R, T, T] bool: each token of a row sees those before it."""
    num_rows, width = token_ids.shape
    return torch.ones(width, width, dtype=torch.bool, device=token_ids.device).tril().expand(num_rows, -1, -1)


def _in_order(verdict: VerificationResult) -> Tensor:
    """[B, T] int64, the node that each emitted token follows: the context's last token is 0, node i is i + 1."""
    assert verdict.path is not None
    return torch.cat([torch.zeros_like(verdict.num_accepted[:, None]), verdict.path + 1], dim=1)


def _along(output: TargetOutput, order: Tensor) -> TargetOutput:
    """The states of some nodes of each row, [B, D + 1]."""

    def taken(states: Tensor) -> Tensor:
        return states.gather(1, order[:, :, None].expand(-1, -1, states.shape[2]))

    return TargetOutput(taken(output.hidden), tuple(taken(states) for states in output.aux))
