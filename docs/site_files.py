"""The files of the site: all files that git tracks, at their own places.

A hook of mkdocs.yml. MkDocs knows one folder of pages, and pages here link to studies,
code and results outside of it.
"""

import re
import subprocess
from pathlib import Path
from typing import Any

import yaml
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Replace the files of docs/ by all files of the repository; keep the theme's."""
    for file in [file for file in files if file.src_dir == config.docs_dir]:
        files.remove(file)
    for path in tracked():
        at = (path, str(ROOT), config.site_dir, config.use_directory_urls)
        files.append(File(*at))
    for path in unmade():
        files.append(File.generated(config, path, content="Not measured yet.\n"))
    return files


def on_page_content(html: str, **_: Any) -> str:
    """Drop the marks of reStructuredText, such as ``:func:``, from docstrings."""
    html = html.replace("::</p>", ":</p>")
    return re.sub(r":(?:class|data|func|meth|mod):(<code>)~?", r"\1", html)


def tracked() -> list[str]:
    """Return the tracked files, and new ones that git does not ignore."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.check_output(command, cwd=ROOT, text=True).splitlines()
    return [path for path in listed if (ROOT / path).is_file()]


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
