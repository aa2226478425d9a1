"""How attention can be computed. Each file has ``supports(request)`` and ``run(request)``."""
