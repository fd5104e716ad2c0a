"""A round of random requests for the tests of verification, and the settings they share."""

import torch
from torch import Tensor

from kernels.contract import Draft, Sampling, Streams, Verification, VerificationMethod, VerificationResult
from kernels.random.streams import Purpose
from kernels.reference.coupled import coupled_draw
from kernels.reference.draw import draw
from kernels.reference.truncation import sampling_rows
from kernels.reference.verify import verify
from kernels.verification import probe

Method = VerificationMethod
Setting = tuple[float, int, float, float]
"""Temperature, top-k, top-p and min-p of a request."""
FALSE_ALARM = 1e-4
RATES = (0.9, 0.6, 0.3)
PLAIN = (1.0, 0, 1.0, 0.0)
GREEDY = (0.0, 0, 1.0, 0.0)
SAMPLED_METHODS = [method for method in Method if method is not Method.greedy]
SHARES_NOISE = (Method.coupled, Method.pr35461)
"""Methods whose drafts are drawn with the noise that verification uses again."""


def verification_of(method: Method) -> Verification:
    return Verification(method, rates=RATES) if method is Method.synthetic else probe(method, len(RATES))


def sampling_of(*rows: Setting) -> Sampling:
    temperature, top_k, top_p, min_p = zip(*rows, strict=True)
    return Sampling(torch.tensor(temperature), torch.tensor(top_k), torch.tensor(top_p), torch.tensor(min_p))


class Round:
    """A round of random requests whose drafts are drawn by the real samplers, close enough to be accepted at times."""

    def __init__(
        self,
        settings: list[Setting],
        lengths: list[int],
        vocab_size: int = 1003,
        seed: int = 0,
        shared_noise: bool = False,
    ):
        num_requests, width = len(settings), max(lengths)
        generator = torch.Generator().manual_seed(seed)
        self.sampling, self.lengths = sampling_of(*settings), torch.tensor(lengths)
        self.streams = Streams(
            torch.randint(-(2**63), 2**63 - 1, (num_requests,), generator=generator),
            torch.randint(0, 1000, (num_requests,), generator=generator),
            torch.randint(0, 100, (num_requests,), generator=generator),
        )
        shape = (num_requests, width + 1, vocab_size)
        self.target = 3 * torch.randn(shape, generator=generator)
        self.cache = self.target[:, :width] + torch.randn(num_requests, width, vocab_size, generator=generator)
        columns = []
        for index in range(width):
            here = Streams(self.streams.seeds, self.streams.positions + index, self.streams.rounds)
            if shared_noise:
                drawn = coupled_draw(self.cache[:, index], self.sampling, here, vocab_size)
            else:
                drawn = draw(self.cache[:, index], self.sampling, here, Purpose.draft)
            columns.append(drawn.token_ids)
        self.token_ids = torch.stack(columns, dim=1)

    def rows(self, requests: Tensor) -> Tensor:
        return torch.cat([self.target[request, : self.lengths[request] + 1] for request in requests])

    def draft(self, requests: Tensor) -> Draft:
        return Draft(self.token_ids[requests], self.lengths[requests], self.cache[requests])

    def verify(self, verification: Verification, requests: Tensor | None = None) -> VerificationResult:
        if requests is None:
            requests = torch.arange(len(self.lengths))
        streams = Streams(*(getattr(self.streams, name)[requests] for name in ("seeds", "positions", "rounds")))
        return verify(
            self.rows(requests),
            self.draft(requests),
            sampling_rows(self.sampling, requests),
            verification,
            streams,
        )
