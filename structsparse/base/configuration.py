"""Where the yaml files of the configuration are: `conf/` in a checkout, `structsparse/conf/` once installed."""

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parents[1]


def configuration_folder() -> Path:
    """The folder with `config.yaml`."""
    installed = _PACKAGE / "conf"
    return installed if installed.is_dir() else _PACKAGE.parent / "conf"
