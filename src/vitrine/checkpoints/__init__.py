"""Weights and their record to disk and back, in our own format and in other libraries' formats."""

from vitrine.checkpoints.converting import Conversion, convert
from vitrine.checkpoints.layouts import Generation, Target
from vitrine.checkpoints.loading import Loaded, load
from vitrine.checkpoints.record import Record
from vitrine.checkpoints.saving import save

__all__ = ["Conversion", "Generation", "Loaded", "Record", "Target", "convert", "load", "save"]
