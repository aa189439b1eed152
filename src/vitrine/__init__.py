"""Vitrine: the Vision Transformer as complete, practical software.

The public names below are imported when first used, so that `import vitrine` is fast and does not
import torch.
"""

import importlib
from typing import TYPE_CHECKING, Any

from vitrine.version import __version__

if TYPE_CHECKING:
    from vitrine.checkpoints import Loaded as Loaded
    from vitrine.checkpoints import load as load
    from vitrine.checkpoints import save as save
    from vitrine.checkpoints.text import zero_shot as zero_shot
    from vitrine.commands.bench import bench as bench
    from vitrine.commands.check import check as check
    from vitrine.commands.convert import convert as convert
    from vitrine.commands.dedup import dedup as dedup
    from vitrine.commands.demo import demo as demo
    from vitrine.commands.embed import embed as embed
    from vitrine.commands.evaluate import evaluate as evaluate
    from vitrine.commands.export import export as export
    from vitrine.commands.fewshot import fewshot as fewshot
    from vitrine.commands.finetune import finetune as finetune
    from vitrine.commands.index import index as index
    from vitrine.commands.inspect import inspect as inspect
    from vitrine.commands.merge import merge as merge
    from vitrine.commands.models import list_models as list_models
    from vitrine.commands.plan import plan as plan
    from vitrine.commands.predict import predict as predict
    from vitrine.commands.pretrain import pretrain as pretrain
    from vitrine.commands.recipes import list_recipes as list_recipes
    from vitrine.commands.report import report as report
    from vitrine.commands.resume import resume as resume
    from vitrine.commands.search import search as search
    from vitrine.commands.serve import serve as serve
    from vitrine.commands.shard import shard as shard
    from vitrine.commands.study import study as study
    from vitrine.commands.suggest import suggest as suggest
    from vitrine.commands.vtab import vtab as vtab
    from vitrine.errors import VitrineError as VitrineError
    from vitrine.estimator import VitClassifier as VitClassifier
    from vitrine.evaluation.fewshot import fewshot_accuracy as fewshot_accuracy
    from vitrine.models import create_model as create_model
    from vitrine.regressor import VitRegressor as VitRegressor
    from vitrine.serving.batch_predictor import BatchPredictor as BatchPredictor
    from vitrine.serving.predictor import Predictor as Predictor

_HOME = {
    "BatchPredictor": "vitrine.serving.batch_predictor",
    "Loaded": "vitrine.checkpoints",
    "Predictor": "vitrine.serving.predictor",
    "VitClassifier": "vitrine.estimator",
    "VitRegressor": "vitrine.regressor",
    "VitrineError": "vitrine.errors",
    "bench": "vitrine.commands.bench",
    "check": "vitrine.commands.check",
    "convert": "vitrine.commands.convert",
    "create_model": "vitrine.models",
    "dedup": "vitrine.commands.dedup",
    "demo": "vitrine.commands.demo",
    "embed": "vitrine.commands.embed",
    "evaluate": "vitrine.commands.evaluate",
    "export": "vitrine.commands.export",
    "fewshot": "vitrine.commands.fewshot",
    "fewshot_accuracy": "vitrine.evaluation.fewshot",
    "finetune": "vitrine.commands.finetune",
    "index": "vitrine.commands.index",
    "inspect": "vitrine.commands.inspect",
    "list_models": "vitrine.commands.models",
    "list_recipes": "vitrine.commands.recipes",
    "load": "vitrine.checkpoints",
    "merge": "vitrine.commands.merge",
    "plan": "vitrine.commands.plan",
    "predict": "vitrine.commands.predict",
    "pretrain": "vitrine.commands.pretrain",
    "report": "vitrine.commands.report",
    "resume": "vitrine.commands.resume",
    "save": "vitrine.checkpoints",
    "search": "vitrine.commands.search",
    "serve": "vitrine.commands.serve",
    "shard": "vitrine.commands.shard",
    "study": "vitrine.commands.study",
    "suggest": "vitrine.commands.suggest",
    "vtab": "vitrine.commands.vtab",
    "zero_shot": "vitrine.checkpoints.text",
}

__all__ = ["__version__", *_HOME]  # noqa: PLE0604


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(_HOME[name]), name)
    raise AttributeError(f"module 'vitrine' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
