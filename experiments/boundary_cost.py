"""The earlier name of `rejection-lab bench-reasoning`, for one version."""

import sys

from experiments.bench_reasoning import main
from harness.config.cli.command_line import say

if __name__ == "__main__":
    say("note: experiments.boundary_cost is deprecated; use rejection-lab bench-reasoning")
    sys.exit(main())
