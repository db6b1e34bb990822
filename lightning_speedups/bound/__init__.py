"""The callbacks by namespace, for programs that import both Lightnings and must say which one they mean."""
