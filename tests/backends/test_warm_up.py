"""A warm-up on a CPU ends after the first steps."""

from harness.backends.local.local import NUM_WARM_UP_STEPS, first_steps


def test_a_warm_up_ends_after_the_first_steps():
    """Fails if it goes on, or no longer asks between rounds whether the run shall end."""
    asked = []
    with first_steps(lambda: asked.append(True)) as ended_round:
        for _ in range(10):
            ended_round()
    assert len(asked) == NUM_WARM_UP_STEPS


def test_a_short_warm_up_ends_by_itself():
    """Fails if fewer steps than those are an error."""
    with first_steps(None) as ended_round:
        ended_round()
