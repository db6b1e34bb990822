"""Parts of the benchmark of evaluation."""
