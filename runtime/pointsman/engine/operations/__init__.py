"""Operators' calls: questions, dead letters, ended workflows, queued requests, circuits, archives, streams.

Calls       questions, threads, dead_letter_entry, dead_letter_replay, dead_letters, resume, messages, forget, audit,
            queued_requests, circuits
Archives    archive, archive_reader, archive_export, archive_import
Streams     provisioning
"""
