"""From bytes on disk to a batch of tensors, and the one `Preprocess` record that goes with the weights."""
