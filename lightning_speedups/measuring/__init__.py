"""What every room measures with: statistics, paired runs, child-process trials, the machine's budget, RNG state."""
