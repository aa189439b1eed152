"""Facts about this machine and this run: device, precision, seeds, ranks, progress."""
