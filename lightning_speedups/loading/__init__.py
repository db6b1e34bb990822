"""Loader settings that are measured and safe, samples kept decoded, and augmentation that no worker count changes."""
