"""The answers of persons to approval requests.

Read: responses
"""
