"""Evaluation without gradients: which mode really ran, what still kept a graph, and what was put right."""
