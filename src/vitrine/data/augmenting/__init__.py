"""Random changes to whole batches on their device."""
