"""The pack's main job on real images: one program trained by a stock Trainer and by the same Trainer with the pack."""
