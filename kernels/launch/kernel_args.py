"""What the kernels are given: groups of pointers and sizes, so that a launch reads as a sentence.

Every field that is a tensor here is a pointer inside a kernel. Shapes as in kernels.contract, and C chunks in a row
(kernels.launch.workspace.chunk_size). Row r * (K + 1) + i of a buffer belongs to request r and to the target's row
after its first i draft tokens, however the rows of the logits lie.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class MaskRows(NamedTuple):
    """Which tokens are allowed in each row of logits; see kernels.contract.TokenMask.

    Its fields are repeated in TargetRows and DraftRows: Triton 3.6 loses sizes of 1 in groups inside of groups. Without
    a mask all are None, and kernels ask whether the words are: 3.6 cannot ask a group that.
    """

    words: Tensor | None = None
    """[M, num_words] int32."""
    stride: int | None = None
    num_words: int | None = None
    rows: Tensor | None = None
    """[number of rows], or [S, >= K] beside a draft-logit cache, int64; -1 for a free row."""
    row_stride: int | None = None
    position_stride: int | None = None
    """Of `rows` beside a draft-logit cache."""
    token_ids: Tensor | None = None
    """[vocabulary of the rows] int64, id of each token in the mask's vocabulary; None when it is the same."""


class TargetRows(NamedTuple):
    """The target's raw logits."""

    logits: Tensor
    """[number of rows, V] bfloat16, float16 or float32."""
    stride: int
    vocab_size: int
    first_rows: Tensor | None
    """[R] int64, the first row of each request; None when request r begins at row r * (K + 1)."""
    in_words: int | None
    """See kernels.rows.unaligned.read_in_words."""
    lead: int | None
    """Not None where chunks begin at the word that the row begins in: see kernels.rows.unaligned."""
    mask_words: Tensor | None = None
    """This and the rest: a MaskRows."""
    mask_stride: int | None = None
    num_mask_words: int | None = None
    mask_rows: Tensor | None = None
    mask_row_stride: int | None = None
    mask_position_stride: int | None = None
    mask_token_ids: Tensor | None = None

    @property
    def is_aligned(self) -> bool:
        """Whether Triton can tell that 16 bytes of a row may be read at once: by the sizes that it specializes for."""
        return self.in_words is None and self.lead is None and self.stride % 16 == 0 and self.vocab_size % 16 == 0


class DraftRows(NamedTuple):
    """The persistent cache of raw draft logits and the statistics of its rows; all None for one-hot proposals."""

    logits: Tensor | None
    """[S, >= K, V_draft]."""
    slot_stride: int
    position_stride: int
    vocab_size: int
    in_words: int | None
    """See kernels.rows.unaligned.read_in_words."""
    slots: Tensor | None
    """[R] int64, the slot of each request; None means slot r."""
    to_draft_ids: Tensor | None
    """[V] int32, draft id of each target id, -1 where there is none; None when the ids are the same."""
    maximum: Tensor | None
    """[S, >= K] float32."""
    normalizer: Tensor | None
    """[S, >= K] float64."""
    threshold: Tensor | None
    """[S, >= K] float32."""
    stats_slot_stride: int
    stats_position_stride: int
    mask_words: Tensor | None = None
    """This and the rest: a MaskRows."""
    mask_stride: int | None = None
    num_mask_words: int | None = None
    mask_rows: Tensor | None = None
    mask_row_stride: int | None = None
    mask_position_stride: int | None = None
    mask_token_ids: Tensor | None = None


class DraftTokens(NamedTuple):
    """The proposals."""

    token_ids: Tensor
    """[R, K] int64."""
    stride: int
    counts: Tensor
    """[R] int64, K_r, or -1 for a padded slot; kernels.chain.row_epilogue.served_count says what others become."""
    num_requests: int
    width: int
    """K."""


class StreamState(NamedTuple):
    """[R] int64 each; see kernels.contract.Streams."""

    seeds: Tensor
    positions: Tensor
    rounds: Tensor


class RowBuffers(NamedTuple):
    """What the first pass leaves of every target row; the first two also of draft rows, after those of all target rows,
    where it sums them."""

    chunk_maximum: Tensor
    """[R * (K + 1), C] float32, largest raw logit of the chunk."""
    chunk_sum: Tensor
    """[R * (K + 1), C] float64, sum of exp((logit - chunk maximum) / T)."""
    chunk_argmax: Tensor
    """[R * (K + 1), C] int32, first token with the chunk's maximum; only at temperature 0."""
    chunk_moment: Tensor
    """[R * (K + 1), C] float64, sum of exp(d / T) * d with d = logit - chunk maximum; only for typical acceptance."""
    argmax: Tensor
    """[R * (K + 1)] int32, what is certain to be drawn: the largest logit at temperature 0, the winner under coupled
    noise; else -1."""
    maximum: Tensor
    """[R * (K + 1)] float32, strided."""
    normalizer: Tensor
    """[R * (K + 1)] float64, strided; NaN for a row without a distribution."""
    threshold: Tensor
    """[R * (K + 1)] float32, strided."""
    stride: int
    """Of the last three."""
    num_chunks: int


class RoundState(NamedTuple):
    """How far each request has come; the counters are 0 between launches."""

    row_arrivals: Tensor
    """[R * (K + 1)] int32, programs that have finished their part of the row."""
    request_arrivals: Tensor
    """[R] int32, rows that are finished."""
    stops: Tensor
    """[R] int32; first pass: K + 1 - (index of the first draft token that failed), 0 while none has;
    second pass of block: the largest index found to pass."""
    judgements: Tensor
    """[R * (K + 1)] int32, see kernels.chain.acceptance."""
    draft_tokens: Tensor
    """[R * (K + 1)] int64, X_i."""
    draft_token_logits: Tensor
    """[R * (K + 1)] float32, target logit of X_i."""
    uniform_numbers: Tensor
    """[R * (K + 1)] float64, its uniform number."""
    next_uniforms: Tensor
    """[R * (K + 1)] float64, the uniform number of the token after i accepted ones; only where the first pass draws
    it."""
    target_logprobs: Tensor
    """[R * (K + 1)] float64, log p_i(X_i); only for block."""
    draft_logprobs: Tensor
    """[R * (K + 1)] float64, log q_i(X_i), 0 for one-hot proposals; the draft logit of X_i until its row is summed."""
    log_ratios: Tensor
    """[R * (K + 1)] float64, log P_i; only for block."""
    plans: Tensor
    """[R] int32, see kernels.chain.accept_count; this and the next only where a second pass follows."""
    needed: Tensor
    """[R] int32, bit i is set when block needs the residual mass after i accepted tokens."""
    masses: Tensor
    """[R * P, C] float64, sum of the weights of the next token in each chunk; P is K for block and 1 otherwise."""
    num_positions: int
    """P."""
    argmax_scores: Tensor
    """[R * (K + 1), C] float64, of the leader of each group of chunks, only where Gumbel noise decides: its noise for
    coupled, its score for pr35461."""
    argmax_logits: Tensor
    """[R * (K + 1), C] float32, that leader's logit; only for coupled."""
    argmax_tokens: Tensor
    """[R * (K + 1), C] int32, that leader's id in its row."""


class TreeWalk(NamedTuple):
    """Where the walks of a round go, and what their programs leave for each other.

    Sums of one step and, before all have read these, of the next, in turn (kernels.launch.grid_barrier). The chunks of
    RowBuffers are kept in the same way.
    """

    parents: Tensor
    """[R, K] int64; see kernels.contract.Draft."""
    parent_stride: int
    path: Tensor
    """[R, K] int64, where the accepted draft tokens go."""
    arrivals: Tensor
    """[R * kernels.launch.grid_barrier.STRIDE] int32, programs that have come to a meeting; 0 between launches."""
    masses: Tensor
    """[2, R, C] float64, sum of [p - c q]+ in each chunk."""
    rests: Tensor
    """[2, R, C] float64, sum of q without the rejected children in each chunk."""
    ratio_masses: Tensor | None
    """[2, P, R, C] float64, sum of [p - rho q]+ in each chunk, for each candidate for the discount of a node's
    children; this and the next only for K-SEQ (kernels.tree.kseq_ratio, whose POINTS is P)."""
    ratio_slopes: Tensor | None
    """[2, P, R, C] float64, sum of q where p is above rho q."""
    removed: Tensor | None = None
    """[programs, K] int64, the children that were rejected; from the launch on."""


class TreePaths(NamedTuple):
    """Trees, and where their accepted paths go."""

    parents: Tensor
    """[R, K] int64; see kernels.contract.Draft."""
    parent_stride: int
    path: Tensor
    """[R, K] int64."""


class Output(NamedTuple):
    """Where the results go."""

    token_ids: Tensor
    """[R, K + 1] int64; of a draw [N]."""
    num_accepted: Tensor
    """[R] int64."""
    invalid: Tensor
    """[R] bool."""
    logprobs: Tensor | None
    """[R] float32, log probability of the drawn token; None but for a draw."""
    to_target_ids: Tensor | None
    """[V_draft] int64; None but for a draw with a smaller vocabulary."""
