"""``python -m cellgate``: the command ``cellgate``, for where its folder is not on the path."""

from __future__ import annotations

from cellgate.cli.main import main

if __name__ == "__main__":
    raise SystemExit(main())
