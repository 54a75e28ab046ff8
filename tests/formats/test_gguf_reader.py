"""The GGUF reader on sound files: values, shapes, views, memory, speed of opening."""

from __future__ import annotations

import gc
import mmap
import os
from pathlib import Path

import gguf
import numpy as np
import pytest
from raw_gguf import ARRAY, STRING, array, kv, small_file, string, tensor
from raw_gguf import gguf as gguf_bytes

from pellucid.formats.block_types import BLOCK_TYPES, F32, Q4_0
from pellucid.formats.dequantize import DEQUANTIZABLE
from pellucid.formats.gguf import GGUFFile


def write(folder: Path, content: bytes) -> Path:
    path = folder / "model.gguf"
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("version", [2, 3])
def test_reads_every_kind_of_value_and_the_tensors(tmp_path: Path, version: int) -> None:
    content = small_file(version)
    file = GGUFFile.open(write(tmp_path, content))
    assert (file.version, file.alignment, file.file_size) == (version, 32, len(content))
    assert file.path == tmp_path / "model.gguf"
    values = file.metadata
    assert values["general.architecture"] == "llama"
    assert values["llama.block_count"] == 2
    assert values["llama.rope.freq_base"] == 10000.0
    assert values["tokenizer.ggml.add_bos_token"] is True
    assert values["tokenizer.ggml.tokens"] == ["a", "é", ""]
    assert values["tokenizer.ggml.scores"].tolist() == [-1.0, 0.5]
    assert values["tokenizer.ggml.scores"].dtype == np.float32
    assert values["tokenizer.ggml.scores"].flags.writeable  # a copy: it does not hold the mapping
    assert values["flags"].tolist() == [False, True]
    assert values["nested"][0].tolist() == [1, 2]
    assert values["nested"][1] == ["x"]
    assert list(file.tensors) == ["norm.weight", "embed.weight", "bias"]
    norm, embed, bias = file.tensors.values()
    assert (norm.shape, norm.type, norm.nbytes) == ((8,), F32, 32)
    assert (embed.shape, embed.type, embed.nbytes) == ((2, 32), Q4_0, 36)
    assert norm.offset == file.data_offset
    assert norm.data.view("<f4").tolist() == list(range(8))
    assert embed.data.tolist() == list(range(36))
    assert bias.data.view("<f4").tolist() == [1, 2, 3]


def test_reads_what_the_gguf_package_writes(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    scalars = {
        "UINT8": 255, "INT8": -128, "UINT16": 65535, "INT16": -32768, "UINT32": 2**32 - 1, "INT32": -(2**31),
        "UINT64": 2**64 - 1, "INT64": -(2**63), "FLOAT32": 0.5, "FLOAT64": 0.1, "BOOL": True, "STRING": "日本\n",
    }  # fmt: skip
    for kind, value in scalars.items():
        writer.add_key_value(f"a.{kind}", value, gguf.GGUFValueType[kind])
    writer.add_array("a.ints", [1, -2, 3])
    writer.add_array("a.strings", ["x", "", "ÿ"])
    weights = np.arange(64, dtype=np.float32).reshape(2, 32)
    writer.add_tensor("w", weights)
    packed = gguf.quants.quantize(weights, gguf.GGMLQuantizationType.Q8_0)
    writer.add_tensor("q", packed, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with GGUFFile.open(path) as file:
        assert {kind: file.metadata[f"a.{kind}"] for kind in scalars} == scalars
        assert file.metadata["a.ints"].tolist() == [1, -2, 3]
        assert file.metadata["a.strings"] == ["x", "", "ÿ"]
        assert file.tensors["w"].shape == (2, 32)
        np.testing.assert_array_equal(file.tensors["w"].data.view("<f4").reshape(2, 32), weights)
        assert file.tensors["q"].shape == (2, 32)
        assert file.tensors["q"].data.tobytes() == packed.tobytes()


def test_tokens_that_are_no_utf8_survive(tmp_path: Path) -> None:
    raw = [b"\xff", b"ok", b"\xe6\x97"]
    tokens = kv("tokens", ARRAY, array(STRING, 3, b"".join(map(string, raw))))
    file = GGUFFile.open(write(tmp_path, gguf_bytes([tokens])))
    assert [text.encode("utf-8", "surrogateescape") for text in file.metadata["tokens"]] == raw


def test_a_scalar_string_that_is_no_utf8_can_still_be_printed(tmp_path: Path) -> None:
    file = GGUFFile.open(write(tmp_path, gguf_bytes([kv("general.name", STRING, string(b"a\xffb"))])))
    assert file.metadata["general.name"] == "a\ufffdb"


def test_other_alignments(tmp_path: Path) -> None:
    for alignment in (1, 8, 4096):
        kvs = [kv("general.alignment", 4, alignment.to_bytes(4, "little"))]
        content = gguf_bytes(kvs, [tensor("w", [1])], b"\0\0\x80?", alignment=alignment)
        file = GGUFFile.open(write(tmp_path, content))
        assert file.data_offset % alignment == 0
        assert file.tensors["w"].data.view("<f4").tolist() == [1.0]


def test_views_outlive_the_file(tmp_path: Path) -> None:
    path = write(tmp_path, small_file())
    with GGUFFile.open(path) as file:
        data = file.tensors["norm.weight"].data
        held = file.tensors["bias"]
    assert file.tensors == {}
    assert file.metadata["llama.block_count"] == 2
    file.close()
    del file
    gc.collect()
    assert data.view("<f4").tolist() == list(range(8))
    held.release()
    assert held.data.view("<f4").tolist() == [1, 2, 3]
    with pytest.raises(ValueError, match="read-only"):
        data[0] = 1


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


def sparse_file(folder: Path, megabytes: int) -> Path:
    path = write(folder, gguf_bytes([], [tensor("w", [megabytes << 18])]))
    os.truncate(path, path.stat().st_size + (megabytes << 20))
    return path


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc")
def test_opening_touches_no_tensor_data_and_release_drops_its_pages(tmp_path: Path) -> None:
    path = sparse_file(tmp_path, 48)
    before = resident_bytes()
    tensor = GGUFFile.open(path).tensors["w"]
    assert resident_bytes() - before < 8 << 20
    assert not tensor.data[:: mmap.PAGESIZE].any()
    assert resident_bytes() - before > 40 << 20
    tensor.release()
    assert resident_bytes() - before < 8 << 20
    assert not tensor.data.any()


def test_release_is_harmless_where_the_system_has_no_such_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(mmap, "MADV_DONTNEED", raising=False)
    tensor = GGUFFile.open(sparse_file(tmp_path, 1)).tensors["w"]
    tensor.release()
    assert not tensor.data.any()


def test_block_types_are_those_of_the_gguf_package() -> None:
    ours = {t.ggml_id: (t.name, t.block_size, t.type_size) for t in BLOCK_TYPES.values()}
    for theirs in gguf.GGMLQuantizationType:
        if theirs.name != "Q8_1":  # the package counts float32 scales, ggml.h has had half ones since 2024
            assert ours[theirs.value] == (theirs.name, *gguf.GGML_QUANT_SIZES[theirs])
    assert {t for t in BLOCK_TYPES.values() if t.served} == set(DEQUANTIZABLE)
