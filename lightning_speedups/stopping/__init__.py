"""Early stopping: decide when a run has stopped improving, and give back its best weights."""
