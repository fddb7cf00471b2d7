"""Operators' calls: approvals, dead letters, queued requests, circuits, archives.

Calls       approvals, dead_letters, queued_requests, circuits
Archives    archive, archive_reader, archive_export, archive_import
"""
