"""Predict with a trained model, and serve it over HTTP; no training code, even indirectly."""
