"""The modules that a cell may import, and the distributions that provide them.

Pure, in linear time. Modules and distributions mostly have the same name; the table lists well-known
exceptions. The kernel decides which names are imported, and which of them are missing, because parsing a
client's code may take seconds.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from types import MappingProxyType

from packaging.utils import canonicalize_name

from cellgate_kernels.protocol.distributions import MOST_NAME, is_name

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
_LINE_END = re.compile(r"[\r\n]")
_NAME = re.compile(r"[A-Za-z_\x80-\U0010ffff][0-9A-Za-z_\x80-\U0010ffff]*+")
_OTHER_LANGUAGE = re.compile(r"\s*%%(?!time\b|timeit\b|capture\b|prun\b)")


def distribution_of(module: str) -> str | None:
    """Return the canonical name of the distribution that presumably provides a top-level module.

    None if there can't be one: module names may use any script or start with an underscore.
    """
    name = DISTRIBUTIONS.get(module) or canonicalize_name(module)
    return name if is_name(name) else None


def python_of(code: str) -> str:
    """Return the Python of a cell, with `pass` in place of magics; empty for a cell in another language."""
    return "" if _OTHER_LANGUAGE.match(code) else _MAGIC.sub(r"\1pass", code)


def names_at_imports(code: str) -> frozenset[str]:
    """Return all names on lines of Python code that may be imports: modules and others.

    In Python's form, NFKC. Names too long for a package's are left out: the time of normalising one grows
    with the square of its length.
    """
    lines = _LINE_END.split(code.replace("\\\r\n", " ").replace("\\\n", " "))
    names = {name for line in lines if "import" in line for name in _NAME.findall(line)}
    return frozenset(unicodedata.normalize("NFKC", name) for name in names if len(name) <= MOST_NAME)
