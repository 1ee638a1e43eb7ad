import hashlib
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.helpers.equality import build_noisy
from tinyexp.errors import CheckpointError
from tinyexp.examples.vit_tp_exp import LAYOUT
from tinyexp.models.vit.build import build_vit
from tinyexp.models.vit.presets import PRESETS
from tinyexp.training.weights import download, interpolate_position_embedding, load_pretrained, weights_problems

NAME = "deit_digits_patch8_32"


def official(**changes: Tensor) -> dict[str, Tensor]:
    return LAYOUT.to_official(build_noisy(NAME).state_dict()) | {
        name.replace("__", "."): value for name, value in changes.items()
    }


def saved(state: dict[str, Tensor], path: Path) -> str:
    torch.save({"model": state}, path)
    return str(path)


def fresh(num_classes: int = 10, img_size: int = 32):
    torch.manual_seed(9)
    return build_vit(PRESETS[NAME], img_size=img_size, num_classes=num_classes)


def test_a_file_that_fits_is_copied_whole_with_or_without_a_wrappers_prefix(tmp_path):
    for prefix in ("", "module."):
        model = fresh()
        source = saved({prefix + name: value for name, value in official().items()}, tmp_path / "a.pth")
        loaded = load_pretrained(model, source, LAYOUT.from_official)
        assert str(loaded) == "72 of 72 tensors"
        noisy = build_noisy(NAME).state_dict()
        assert all(torch.equal(value, noisy[name]) for name, value in model.state_dict().items())


def test_a_bare_state_without_a_checkpoint_around_it_is_read(tmp_path):
    torch.save(official(), tmp_path / "bare.pth")
    assert load_pretrained(fresh(), str(tmp_path / "bare.pth"), LAYOUT.from_official).copied == 72


def test_weights_that_do_not_fit_are_named_and_nothing_is_copied(tmp_path):
    model = fresh()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    source = saved(official(extra=torch.zeros(1), head__weight=torch.zeros(3, 96)), tmp_path / "other.pth")
    with pytest.raises(CheckpointError, match=r"unexpected \(1\): extra; other shapes \(1\): head\.weight is \(3, 96\)"):
        load_pretrained(model, source, LAYOUT.from_official)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_a_head_of_other_classes_is_left_out_only_where_that_is_allowed_and_said(tmp_path):
    source = saved(official(), tmp_path / "ten.pth")
    model = fresh(num_classes=4)
    head = model.state_dict()["head.weight"].clone()
    with pytest.raises(CheckpointError, match=r"other shapes \(2\): head\.bias"):
        load_pretrained(model, source, LAYOUT.from_official)
    loaded = load_pretrained(model, source, LAYOUT.from_official, may_drop_head=True)
    assert str(loaded) == "70 of 72 tensors\n  head starts anew: the file has 10 classes, the model 4"
    assert torch.equal(model.state_dict()["head.weight"], head)
    norm = "blocks.0.norm1.weight"
    assert torch.equal(model.state_dict()[norm], build_noisy(NAME).state_dict()[norm])


def test_a_position_embedding_of_another_size_is_interpolated_and_said(tmp_path):
    model = fresh(img_size=64)
    loaded = load_pretrained(model, saved(official(), tmp_path / "small.pth"), LAYOUT.from_official)
    assert str(loaded) == "72 of 72 tensors\n  pos_embed interpolated from 17 to 65 tokens"
    embedding = model.state_dict()["pos_embed"]
    assert torch.equal(embedding[:, 0], build_noisy(NAME).state_dict()["pos_embed"][:, 0])
    assert embedding.shape == (1, 65, 96)


def test_interpolation_keeps_a_constant_grid_and_refuses_a_ragged_one():
    embedding = torch.cat([torch.full((1, 1, 3), 7.0), torch.full((1, 16, 3), 2.0)], dim=1)
    larger = interpolate_position_embedding(embedding, 26)
    torch.testing.assert_close(larger, torch.cat([torch.full((1, 1, 3), 7.0), torch.full((1, 25, 3), 2.0)], dim=1))
    with pytest.raises(CheckpointError, match="only square grids"):
        interpolate_position_embedding(embedding, 20)


def test_a_distilled_checkpoint_is_refused_by_name(tmp_path):
    source = saved(official(dist_token=torch.zeros(1, 1, 96)), tmp_path / "distilled.pth")
    with pytest.raises(CheckpointError, match=r"distilled\.pth is a distilled DeiT"):
        load_pretrained(fresh(), source, LAYOUT.from_official)


def test_a_file_without_weights_is_refused(tmp_path):
    torch.save({"model": {"note": "none"}}, tmp_path / "note.pth")
    with pytest.raises(CheckpointError, match="holds no state of a model"):
        load_pretrained(fresh(), str(tmp_path / "note.pth"), LAYOUT.from_official)


def test_a_path_that_is_no_checkpoint_is_said_before_anything_is_read(tmp_path):
    (tmp_path / "page.md").write_text("# a page of text\n")
    (tmp_path / "empty.pth").touch()
    torch.save({"model": official()}, tmp_path / "old.pth", _use_new_zipfile_serialization=False)
    for name, part in {
        "absent.pth": "no such file (",
        "": "is a folder; name a file in it",
        "page.md": "is no checkpoint: it starts with b'# a page of text'",
        "empty.pth": "empty.pth is empty",
    }.items():
        [problem] = weights_problems("module_cfg.pretrained_from", str(tmp_path / name))
        assert problem.startswith(f"module_cfg.pretrained_from={tmp_path / name}: ") and part in problem
    assert "is no regular file" in weights_problems("module_cfg.pretrained_from", "/dev/null")[0]
    assert weights_problems("module_cfg.pretrained_from", str(tmp_path / "old.pth")) == []
    with pytest.raises(CheckpointError, match=r"page\.md is no checkpoint: it starts with b'# a page of text'; a file of torch"):
        load_pretrained(fresh(), str(tmp_path / "page.md"), LAYOUT.from_official)


def test_a_download_is_kept_only_if_it_has_the_hash_that_its_name_promises(tmp_path, monkeypatch):
    content = b"weights"
    digest = hashlib.sha256(content).hexdigest()[:8]
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))

    class Response:
        headers: dict[str, str]

        def __init__(self) -> None:
            self.headers, self._left = {"Content-Length": str(len(content))}, content

        def read(self, size: int = -1) -> bytes:
            left, self._left = self._left, b""
            return left

        def info(self):
            return self

        def getheaders(self, name):
            return []

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

    monkeypatch.setattr("torch.hub.urlopen", lambda *_, **__: Response())
    kept = download(f"https://example.org/deit-{digest}.pth")
    assert kept.read_bytes() == content
    with pytest.raises(CheckpointError, match="is not the file that its name promises"):
        download("https://example.org/deit-00000000.pth")
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == [kept.name]
    signed = download(f"https://example.org/deit-{digest}.pth?token=hunter2/3")
    assert signed.read_bytes() == content
    assert signed != kept
    assert signed.name.endswith(f"_deit-{digest}.pth")
    assert "hunter2" not in signed.name
    with pytest.raises(CheckpointError, match="only a path or an https URL is read"):
        download("http://example.org/deit.pth")
