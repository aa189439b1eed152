"""Which image comes when, and batches of them: order, workers, loaders."""
