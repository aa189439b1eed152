"""What the paper measures: accuracy, ReaL, few-shot, VTAB, speed. Importable without any training code."""
