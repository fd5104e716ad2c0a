"""One pair of each row leaves a draft head as it does among all pairs of its row."""

import pytest
import torch

from harness.models.direct_layer import FEWEST_ROWS, rounds_alike
from tests.support.tiny_heads import make_head
from tests.support.tiny_models import TOLERANCE, VOCAB_SIZE, random_target

NUM_ROWS, WIDTH = FEWEST_ROWS + 1, 3


@pytest.mark.parametrize("kind", ["eagle", "eagle3", "mtp"])
@torch.inference_mode()
def test_wanted_pairs_are_those_of_a_whole_forward(kind):
    """Fails if a residual, or the rows of attention, are taken at another place than the one wanted."""
    torch.manual_seed(0)
    head = make_head(kind, random_target())
    token_ids = torch.randint(VOCAB_SIZE, (NUM_ROWS, WIDTH))
    features = torch.randn(NUM_ROWS, WIDTH, head.hidden_size)
    positions = torch.arange(WIDTH).expand(NUM_ROWS, -1)
    columns = torch.tensor([2, 0, 1, 2, 1])
    found = []
    for wanted in (None, torch.arange(NUM_ROWS) * WIDTH + columns):
        view = head.new_cache(NUM_ROWS, WIDTH).view(slice(0, NUM_ROWS), positions, WIDTH)
        found.append(head(token_ids, features, positions, view, wanted))
    assert rounds_alike(head.decoder_layers[0], features, view)
    for of_all, of_wanted in zip(*found, strict=True):
        # on most processors bit for bit
        torch.testing.assert_close(of_all[torch.arange(NUM_ROWS), columns], of_wanted[:, 0], **TOLERANCE)


def test_few_rows_are_computed_in_full():
    """Fails if so few rows are computed alone that most libraries sum their products in another order."""
    head = make_head("eagle", random_target())
    positions = torch.zeros(1, 1, dtype=torch.int64)
    view = head.new_cache(1, 1).view(slice(0, 1), positions, 1)
    assert not rounds_alike(head.decoder_layers[0], torch.zeros(FEWEST_ROWS - 1, 1, head.hidden_size), view)
