"""The answers of persons to questions.

Read: answers, answer_schema
"""
