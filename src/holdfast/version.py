"""The version: package metadata, `holdfast --version`, the OpenAPI document and `holdfast.__version__` read it here."""

__version__ = "0.1.0"
