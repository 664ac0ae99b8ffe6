"""The folder of the configuration's yaml files: `conf/` in a checkout, `structsparse/conf/` in an installed package."""

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parents[1]


def configuration_folder() -> Path:
    """The path of the configuration folder, which has `config.yaml` and a folder for each configuration group."""
    installed = _PACKAGE / "conf"
    return installed if installed.is_dir() else _PACKAGE.parent / "conf"
