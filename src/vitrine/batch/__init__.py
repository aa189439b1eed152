"""Many pictures through a model into numbered parts that are written once, and search over them."""
