"""The outcome of one attempt: failure, retry, review, refinement of the intent, and release of held tasks.

Read in this order: failures, retry, review, refinement, held
"""
