"""Make the links of the package's page absolute, before a wheel is built.

    python docs/package_page.py REPOSITORY TAG

The page is README.md, which links to files by relative paths; an index of packages has
no such files. REPOSITORY is an address such as https://host/owner/name, with its files
below ``blob`` and ``raw``. It also becomes ``project.urls`` of pyproject.toml.
"""

import re
import sys
from pathlib import Path


def absolute(text: str, repository: str, tag: str) -> str:
    """Return ``text`` with absolute links: of pictures below ``raw``, else ``blob``."""

    def link(found: re.Match[str]) -> str:
        before, picture, label, target = found.groups()
        kind = "raw" if picture else "blob"
        return f"{before}{picture}[{label}]({repository}/{kind}/{tag}/{target})"

    # not of other sites (https:), nor of this page (#)
    return re.sub(r"(^|[^!])(!?)\[([^]]+)\]\(([\w.][^):]*)\)", link, text)


def urls(repository: str, tag: str) -> str:
    """Return the table of pyproject.toml with the addresses of the project."""
    blob = f"{repository}/blob/{tag}"
    return (
        f'\n[project.urls]\nRepository = "{repository}"\n'
        f'Documentation = "{blob}/README.md#documentation"\n'
        f'Changelog = "{blob}/CHANGELOG.md"\n'
    )


def main(folder: Path, repository: str, tag: str) -> None:
    """Rewrite README.md and pyproject.toml in ``folder``."""
    readme, project = folder / "README.md", folder / "pyproject.toml"
    readme.write_text(absolute(readme.read_text("utf-8"), repository, tag), "utf-8")
    project.write_text(project.read_text("utf-8") + urls(repository, tag), "utf-8")


if __name__ == "__main__":
    main(Path(), *sys.argv[1:])
