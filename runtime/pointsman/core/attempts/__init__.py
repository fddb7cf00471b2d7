"""The outcome of one attempt: failure, retry, review, refinement of the intent.

Read in this order: failures, retry, review, refinement
"""
