"""The workflow core: `decide` what inputs mean, `evolve` the state, derive its `outbox`. No I/O, no clock, no chance.

entries = decide(state, inputs, circumstances)      what these inputs mean
state   = fold(entries, state)                      the state they lead to
sent    = outbox(state, subjects)                   everything that must exist on the bus in this state
"""
