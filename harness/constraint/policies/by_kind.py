"""The policy of a setting."""

from __future__ import annotations

from harness.constraint.policies.commit import Commit
from harness.constraint.policies.late import Late
from harness.constraint.policies.mask import Mask
from harness.constraint.policies.policy import Policy
from harness.settings.constraint import PolicyKind

POLICIES: dict[PolicyKind, Policy] = {
    PolicyKind.late: Late(),
    PolicyKind.commit: Commit(),
    PolicyKind.mask: Mask(),
}
"""The policies that hold an answer to a grammar; `none` only looks at it afterwards."""
