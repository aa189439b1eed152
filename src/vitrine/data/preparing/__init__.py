"""From pixels to a model's input: crop, resize, normalise; the same for training, evaluation, export, serving."""
