"""Send outcomes, questions and dead letters over HTTP, signed by Standard Webhooks.

endpoints       the receivers, and the check of URLs
endpoint_store  the receivers and their secrets, in key-value buckets
events          the bodies of requests
sender          one signed request to a checked address
deliveries      the states of requests, and orders to repeat a request
capacity        the bounds of simultaneous requests, for each receiver and each caller
observer        the state of the processes, and the oldest attempt that is due
observation     metrics and spans
service         the process: stores and sends the requests, and returns failed requests to the broker
"""
