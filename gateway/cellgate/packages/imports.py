"""The modules that a cell imports, and the distributions that provide them.

Pure. Modules and distributions mostly have the same name; the table lists well-known exceptions. Whether a
module is missing is not decided here: the kernel is asked.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType

from packaging.utils import canonicalize_name

from cellgate_kernels.distributions import is_name

DISTRIBUTIONS: Mapping[str, str] = MappingProxyType(
    {
        "Bio": "biopython",
        "Crypto": "pycryptodome",
        "Levenshtein": "levenshtein",
        "MySQLdb": "mysqlclient",
        "OpenGL": "pyopengl",
        "OpenSSL": "pyopenssl",
        "PIL": "pillow",
        "attr": "attrs",
        "bs4": "beautifulsoup4",
        "community": "python-louvain",
        "cv2": "opencv-python-headless",
        "dateutil": "python-dateutil",
        "dns": "dnspython",
        "docx": "python-docx",
        "dotenv": "python-dotenv",
        "faiss": "faiss-cpu",
        "fitz": "pymupdf",
        "git": "gitpython",
        "github": "pygithub",
        "googleapiclient": "google-api-python-client",
        "imblearn": "imbalanced-learn",
        "jose": "python-jose",
        "jwt": "pyjwt",
        "kafka": "kafka-python",
        "magic": "python-magic",
        "mpl_toolkits": "matplotlib",
        "multipart": "python-multipart",
        "nacl": "pynacl",
        "pkg_resources": "setuptools",
        "pptx": "python-pptx",
        "psycopg2": "psycopg2-binary",
        "pywt": "pywavelets",
        "serial": "pyserial",
        "skimage": "scikit-image",
        "sklearn": "scikit-learn",
        "skopt": "scikit-optimize",
        "slugify": "python-slugify",
        "speech_recognition": "speechrecognition",
        "umap": "umap-learn",
        "usb": "pyusb",
        "yaml": "pyyaml",
        "zmq": "pyzmq",
    }
)
"""Module names mapped to the canonical names of their distributions, where they differ."""

_MAGIC = re.compile(r"^([ \t]*)[%!?].*$", re.MULTILINE)
_OTHER_LANGUAGE = re.compile(r"\s*%%(?!time\b|timeit\b|capture\b|prun\b)")


def distribution_of(module: str) -> str | None:
    """The canonical name of the distribution that presumably provides a top-level module.

    None if there can't be one: module names may use any script or start with an underscore.
    """
    name = DISTRIBUTIONS.get(module) or canonicalize_name(module)
    return name if is_name(name) else None


def imported_modules(code: str) -> frozenset[str]:
    """The top-level modules in a Python cell's import statements; none if the cell is not valid Python."""
    if _OTHER_LANGUAGE.match(code):
        return frozenset()
    try:
        tree = ast.parse(_MAGIC.sub(r"\1pass", code))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return frozenset()
    return frozenset(name for node in ast.walk(tree) for name in _names(node))


def _names(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name.partition(".")[0] for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
        yield node.module.partition(".")[0]
