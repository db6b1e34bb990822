"""Only ``lightning.pytorch`` is installed, and it is imported first."""

import importlib.util
import json

import lightning as L

import lightning_speedups as ls
from lightning_speedups import EarlyStopping
from tests.namespace_programs import facts

other = "pytorch_lightning"
told = {"other_installed": importlib.util.find_spec(other) is not None}
told |= facts.of_the_class(EarlyStopping, "lightning.pytorch")
told |= facts.of_the_entry_point("lightning.pytorch")
told["loaded_in_the_end"] = facts.loaded()
told["name_is_now_the_class"] = ls.EarlyStopping is EarlyStopping is type(EarlyStopping("val_loss"))
told["trainer"] = L.Trainer.__module__.partition(".")[0]
print(json.dumps(told))
