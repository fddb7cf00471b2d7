"""The workflow core: `decide` what inputs mean, `evolve` the state, derive its `outbox`. No I/O, no clock, no chance.

entries = decide(state, inputs, circumstances)      what these inputs mean
state   = fold(entries, state)                      the state they lead to
sent    = outbox(state, subjects)                   everything that must exist on the bus in this state

To read in this order; the first two lines are the whole protocol, each of the others is one concern of it:

the state       transitions, state, evolve, pending
the decision    inputs, decide, draft, outbox, message
plans           planning, plans, strategies, adaptive, pipeline, fan_out, choreography, nesting
attempts        attempts, retry, refining, reviewing
who gets work   attendance, routing, load, circuits, holding
people          approvals, verdicts
bounds          limits, budget, tree, metering
the answer      answers, outcome, disagreements
shown again     trace, story, awaited, words, diagram, grounds, rehearsal
"""
