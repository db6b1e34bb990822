"""The pack is imported above ``lightning.pytorch``, as isort puts it; the other Lightning comes in at the end."""

import json
import pickle

from tests.namespace_programs import facts

told = {}
import lightning_speedups as ls  # noqa: E402 - the order is what is tested

told["loaded_with_the_pack"] = facts.loaded(facts.HEAVY)
from lightning_speedups import EarlyStopping  # noqa: E402

told["loaded_with_the_name"] = facts.loaded()
told["late"] = repr(EarlyStopping)
told["late_pickles"] = repr(pickle.loads(pickle.dumps(EarlyStopping)))
from lightning.pytorch import Trainer  # noqa: E402

told |= facts.of_the_class(EarlyStopping, "lightning.pytorch")
told |= facts.of_the_entry_point("lightning.pytorch")
told["loaded_in_the_end"] = facts.loaded()
told["name_is_now_the_class"] = ls.EarlyStopping is type(EarlyStopping("val_loss"))
told |= facts.with_both_imported(EarlyStopping, EarlyStopping("val_loss", patience=1))
told["trainer"] = Trainer.__module__.partition(".")[0]
print(json.dumps(told))
