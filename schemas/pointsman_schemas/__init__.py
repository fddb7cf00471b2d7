"""Define the wire contract: events, plans, cards, envelopes, subjects and ids. The only dependency is pydantic."""
