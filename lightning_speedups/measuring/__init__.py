"""What every room measures with: statistics, paired runs, trials in a child process, the machine's budget, RNG state."""
