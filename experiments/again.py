"""The earlier name of `rejection-lab reproduce`, for one version."""

import sys

from experiments.reproduce import main
from harness.config.cli.command_line import say

if __name__ == "__main__":
    say("note: experiments.again is deprecated; use rejection-lab reproduce")
    sys.exit(main())
