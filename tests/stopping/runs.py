"""Fits for the tests of early stopping."""

import warnings

from tests.helpers import loader, quiet_trainer


def fit(module, callback, train=None, val=None, *, ckpt_path=None, **settings):
    callbacks = [callback, *settings.pop("others", [])]
    trainer = quiet_trainer(**{"max_epochs": 10, **settings, "callbacks": callbacks})
    train, val = (loader() if given is None else given for given in (train, val))
    trainer.fit(module, train, val, ckpt_path=ckpt_path, weights_only=True if ckpt_path else None)
    return trainer


def heard(run):
    """Runs it and gives back the warnings of this pack."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run()
    return [str(each.message) for each in caught if str(each.message).startswith("EarlyStopping")]
