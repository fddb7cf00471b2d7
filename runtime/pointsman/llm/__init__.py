"""Model providers behind one port: one adapter per file, the offline model, and the texts around a model call."""
