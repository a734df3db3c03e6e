"""jaxformer: a laboratory for the Transformer in JAX. Importing it starts no device."""

__version__ = '0.1.0'
