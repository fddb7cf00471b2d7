"""The offline model uses rules in place of a provider, for demonstrations and tests.

Read in this order: model, planning, roles, work, words, keyword_matching, arguments
"""
