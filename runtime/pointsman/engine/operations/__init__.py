"""Operators' calls: approvals, dead letters, queued requests, circuits, archives.

Read in any order: approvals, dead_letters, queued_requests, circuits, archive
"""
