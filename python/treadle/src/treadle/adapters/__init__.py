"""Adapters for other frameworks. Each subclasses the framework's class where that is installed, and stands alone where not."""
