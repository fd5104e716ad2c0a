"""What only a GPU can show of edited rows: long rows and texts, and a text that grows between replays of a graph."""

import pytest
import torch

from kernels.contract import LogitEdits, Texts, TokenTally
from kernels.edit_logits import edit_logits
from kernels.reference.edit_logits import edit_logits as reference_edit_logits

pytestmark = pytest.mark.gpu
CUDA = torch.device("cuda")
CAPACITY, NUM_FIXED = 4096, 40


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("num_drafts", [3, 31], ids="{} drafts".format)
def test_replays_of_a_graph_edit_as_the_reference_does(num_drafts: int, dtype: torch.dtype):
    """Would catch lists that are brought up to date while another program reads them, products and differences that
    are rounded at once, and numbers of a text that a capture keeps."""
    num_requests, vocab_size = 16, 128_255
    generator = torch.Generator(CUDA).manual_seed(num_drafts)

    def some(*size: int) -> torch.Tensor:
        return (torch.rand(size, generator=generator, device=CUDA) ** 3 * vocab_size).long()

    token_ids = some(num_requests, CAPACITY)
    prompt_lengths = torch.arange(num_requests, device=CUDA) * 200 + 1
    lengths = prompt_lengths.clone()
    fixed = torch.arange(num_requests * NUM_FIXED, device=CUDA).view(num_requests, -1).int()
    strengths = torch.linspace(0.5, 1.5, num_requests, device=CUDA)
    edits = LogitEdits(
        strengths, strengths - 1, 1 - strengths, prompt_lengths % 7, fixed, fixed % 5 - 2.0, (fixed % 3) == 0
    )
    drafts, decides = some(num_requests, num_drafts), torch.ones(num_requests, dtype=torch.int64, device=CUDA)
    size = num_requests * (num_drafts + 1), vocab_size
    rows = torch.empty(size, dtype=dtype, device=CUDA)
    tally = TokenTally.empty(num_requests, NUM_FIXED + CAPACITY + num_drafts, CUDA)
    texts = Texts(token_ids, lengths, prompt_lengths)
    rows.zero_()
    edit_logits(rows, drafts, decides, texts, edits, tally)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        edit_logits(rows, drafts, decides, texts, edits, tally)
    tally.num_read.zero_()
    for _ in range(4):
        rows.copy_((3 * torch.randn(size, generator=generator, device=CUDA)).to(dtype))
        drafts.copy_(some(num_requests, num_drafts))
        wanted = rows.clone()
        reference_edit_logits(wanted, drafts, decides, texts, edits)
        graph.replay()
        torch.testing.assert_close(rows, wanted, rtol=0, atol=0)
        lengths += num_drafts + 1
