"""What several test files need: the real panels, where they are."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[1]


def _shared(name: str) -> Path:
    default = PROJECT.parent / "shared" / name
    folder = Path(os.environ.get(f"FEDVAR_{name.upper()}", default))
    if not folder.is_dir():
        pytest.skip(f"the real panels are not here: no folder {folder} (set FEDVAR_{name.upper()})")
    return folder


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """Folder of the real panels: FEDVAR_DATA, else ../shared/data beside the project."""
    return _shared("data")


@pytest.fixture(scope="session")
def golden_dir() -> Path:
    """Folder of the golden arrays: FEDVAR_GOLDEN, else ../shared/golden beside the project."""
    return _shared("golden")


@pytest.fixture(scope="session")
def panel_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A simulated panel as the command line writes it; tests leave it as it is."""
    from cli_runs import done

    folder = tmp_path_factory.mktemp("panel") / "sim"
    done("simulate", folder, "--clients", 3, "--dim", 4, "--rows", 60, "--rank", 1, "--nonzeros", 1, "--seed", 3)
    return folder


@pytest.fixture(scope="session")
def model_file(panel_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of it, of order 2."""
    from cli_runs import done

    path = tmp_path_factory.mktemp("model") / "model.npz"
    done("fit", panel_dir, "--order", 2, "--out", path)
    return path
