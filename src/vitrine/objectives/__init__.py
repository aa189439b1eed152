"""From a model's output and a batch to a loss."""
