"""An object is made before any Lightning is imported, in a Python started with ``-S``."""

import json
import sys

import lightning_speedups as ls
from lightning_speedups import EarlyStopping
from tests.namespace_programs import facts

told = {"no_site": bool(sys.flags.no_site), "loaded_before": facts.loaded()}
made = EarlyStopping("val_loss", patience=1)
told["made_for"] = made.namespace
told["loaded_after"] = facts.loaded()
told["wrong_argument"] = facts.error_of(lambda: ls.EarlyStopping("val_loss", mode="best"))
told["no_such_name"] = facts.error_of(lambda: ls.EarlyStoping)
told["no_such_bound_name"] = facts.error_of(lambda: __import__("lightning_speedups.bound.lightning").bound.lightning.X)
told["listed"] = set(ls.__all__) <= set(dir(ls))
told["epochs"] = facts.epochs_run("pytorch_lightning", made)
print(json.dumps(told))
