"""The files of the site: the pages of the repository and what they link to, at their
own places.

A hook of mkdocs.yml. MkDocs knows one folder of pages, and pages here link to studies,
code and results outside of it.
"""

import os.path
import re
import subprocess
from pathlib import Path
from typing import Any

import yaml
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Replace the files of docs/ by all pages and their links; keep the theme's."""
    for file in [file for file in files if file.src_dir == config.docs_dir]:
        files.remove(file)
    paths = tracked()
    linked = {target for path in paths if is_page(path) for target in links_of(path)}
    for path in filter(lambda path: is_page(path) or path in linked, paths):
        at = (path, str(ROOT), config.site_dir, config.use_directory_urls)
        files.append(File(*at))
    files.append(
        File("site.css", config.docs_dir, config.site_dir, use_directory_urls=True)
    )
    for path in unmade():
        files.append(File.generated(config, path, content="Not measured yet.\n"))
    return files


def on_page_content(html: str, **_: Any) -> str:
    """Drop the marks of reStructuredText, such as ``:func:``, from docstrings, and
    pictures of other sites, such as badges.
    """
    html = html.replace("::</p>", ":</p>")
    html = re.sub(r'<img [^>]*src="https?:[^>]*>', "", html)
    return re.sub(r":(?:class|data|func|meth|mod):(<code>)~?", r"\1", html)


def tracked() -> list[str]:
    """Return the tracked files, and new ones that git does not ignore."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.check_output(command, cwd=ROOT, text=True).splitlines()
    return [path for path in listed if (ROOT / path).is_file()]


def is_page(path: str) -> bool:
    """Return True for a page that a reader may want; not so a template of one."""
    return path.endswith(".md") and not path.startswith((".", "tests/"))


def links_of(page: str) -> set[str]:
    """Return the paths that a page links to, pictures too, from the root."""
    targets = re.findall(r'[("]([^()"\s#]+)[#)"]', (ROOT / page).read_text("utf-8"))
    folder = os.path.dirname(page)
    return {os.path.normpath(os.path.join(folder, target)) for target in targets}


def unmade() -> list[str]:
    """Return outputs of studies that are not there yet but shown in a README."""
    paths = [
        pipeline.with_name(out if isinstance(out, str) else next(iter(out)))
        for pipeline in ROOT.glob("studies/*/dvc.yaml")
        for stage in yaml.safe_load(pipeline.read_text())["stages"].values()
        for kind in ("outs", "metrics", "plots")
        for out in stage.get(kind, [])
    ]
    return [p.relative_to(ROOT).as_posix() for p in paths if not p.exists()]
