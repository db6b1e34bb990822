"""The loaders that ``benchmarks/loading.py`` tunes, and how a setting of one is measured."""
