"""VTAB-1k (arXiv:1910.04867): 19 tasks of 1,000 training images each, from local files, without TensorFlow."""
