"""Ax is imported here first, without its warnings."""

import warnings


with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import ax.analysis.overview
    import ax.api.client
    import ax.api.utils.generation_strategy_dispatch
    import ax.storage.sqa_store.db  # noqa: F401
