"""The paper's measurements: accuracy, ReaL, few-shot, VTAB, speed. Importable without any training code."""
