"""Only ``pytorch_lightning`` is installed, and it is imported first."""

import importlib.util
import json

import pytorch_lightning as pl

import lightning_speedups as ls
from lightning_speedups import EarlyStopping
from tests.namespace_programs import facts

other = "lightning"
told = {"other_installed": importlib.util.find_spec(other) is not None}
told |= facts.of_the_class(EarlyStopping, "pytorch_lightning")
told |= facts.of_the_entry_point("pytorch_lightning")
told["loaded_in_the_end"] = facts.loaded()
told["name_is_now_the_class"] = ls.EarlyStopping is EarlyStopping is type(EarlyStopping("val_loss"))
told["trainer"] = pl.Trainer.__module__.partition(".")[0]
print(json.dumps(told))
