"""Replacements of OpenTelemetry SDK parts on the hot path.

Read in this order: lean_spans, otlp_encoder, export_gate, histograms, otlp_exporter
"""
