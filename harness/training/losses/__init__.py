"""What the training of a drafter minimises, one module each; harness.training.settings names them."""
