"""Model providers behind one port: one adapter a file, the offline model, and the words around a model call."""
