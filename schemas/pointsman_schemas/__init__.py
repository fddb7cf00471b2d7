"""The words on the wire: events, plans, cards, envelopes, subjects, ids. Imports pydantic and nothing of ours."""
