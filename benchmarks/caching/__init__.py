"""What CachedDataset saves over decoding: called by the benchmark of the loaders."""
