"""Send outcomes, questions and dead letters over HTTP, signed by Standard Webhooks.

endpoints       the receivers, and the events that each wants
endpoint_store  the receivers and their secrets, in key-value buckets
events          the bodies of requests
sender          one signed request to a checked address
deliveries      the states of requests, and orders to repeat one
service         the process: stores an event for each receiver, sends it, and returns it to the broker after a failure
"""
