"""The steps after an attempt has ended: failure, retry, review, and refinement of the intent.

Read in this order: failures, retry, review, refinement
"""
