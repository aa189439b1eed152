"""A trained model in use: from pictures to answers; no training code, not even indirectly."""
