"""The command line ``sdrs``: the same calls as the SDK, for operators and for shells.

It stands on the SDK and starts daemons only as processes of their own. Modules here import no more than click when they
are loaded; rich and gRPC come in where a verb needs them, so that ``sdrs --help`` and completion answer at once.
"""
