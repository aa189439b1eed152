"""Measurements of models: classes, masks, boxes, numbers, few-shot, VTAB, speed. Importable without training code."""
