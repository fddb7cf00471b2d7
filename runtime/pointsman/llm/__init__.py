"""Model providers behind one port, with one adapter per file, the offline model, and the texts around a model call."""
