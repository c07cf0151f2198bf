"""The privacy officer's pages: what was spent, on which guarantee, at which pace, and whether the journal is whole."""

from privalign.gateway.dashboard.router import make_router

__all__ = ["make_router"]
