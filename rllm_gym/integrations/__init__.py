"""Adapters between this package and other libraries: one module per library, imported only when used."""
