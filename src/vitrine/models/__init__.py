"""From images to named features and logits: no I/O, no logging, no device moves."""
