"""The demo: real images through a stock Trainer and through the same Trainer with the pack."""
