"""One training run, from data, model and recipe to a run folder with a trained model and its report."""
