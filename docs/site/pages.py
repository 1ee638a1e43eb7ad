"""The pages of the site, at the paths that they have in the repository: a link that works there works here, unchanged."""

from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

FRONT_PAGES = ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "LICENSE")
PICTURES = "benchmarks/results/*.png"  # that pages show


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """The files of docs/ under docs/, beside the pages and pictures that lie outside of it. MkDocs calls this by its name."""
    root = Path(config.config_file_path).parent
    for file in list(files):
        if file.src_dir == config.docs_dir:
            files.remove(file)
            if not file.src_uri.endswith(".py"):
                files.append(_at(f"docs/{file.src_uri}", root, config))
    pictures = [path.relative_to(root).as_posix() for path in sorted(root.glob(PICTURES))]
    for place in (*FRONT_PAGES, *pictures):
        files.append(_at(place, root, config))
    return files


def _at(place: str, root: Path, config: MkDocsConfig) -> File:
    return File.generated(config, place, abs_src_path=str(root / place))
