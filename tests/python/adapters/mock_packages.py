"""Packages that cannot be installed without a GPU, mocked: any attribute is a class of that name."""

import importlib.abc
import importlib.machinery
import importlib.metadata
import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from unittest.mock import MagicMock

import pytest

VERSIONS = {"vllm": "0.24.0", "sglang": "0.5.12"}


class MockModule(ModuleType):
    """Any attribute is a class of that name, so that verl's modules can import and derive from it."""

    __path__: list[str] = []

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        value = type(name, (MagicMock,), {})
        setattr(self, name, value)
        return value


class MockFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, packages):
        self.packages = packages

    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in self.packages:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        module = MockModule(spec.name)
        module.__version__ = VERSIONS[spec.name.split(".")[0]]
        return module

    def exec_module(self, module):
        pass


@contextmanager
def mocked(*packages: str) -> Iterator[None]:
    """Skips the test where one of them is installed, because the mock would hide it."""
    for name in packages:
        if importlib.util.find_spec(name):
            pytest.skip(f"{name} is installed; the mock would hide it")
    finder, version = MockFinder(packages), importlib.metadata.version
    sys.meta_path.insert(0, finder)
    importlib.metadata.version = lambda name: VERSIONS[name] if name in packages else version(name)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        importlib.metadata.version = version
        for name in [name for name in sys.modules if name.split(".")[0] in packages]:
            del sys.modules[name]
