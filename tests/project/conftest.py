"""What the tests of disturbed pipelines share."""

import pytest
from copies import Undisturbed, make_undisturbed


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    """A small copy of the project that was made in peace; trials lie beside it."""
    return make_undisturbed(tmp_path_factory.mktemp("chaos") / "undisturbed")
