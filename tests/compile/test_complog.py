from __future__ import annotations

from typing import TYPE_CHECKING

from npgxd.compile import JobItem
from npgxd.compile.complog import LogWatch, complaints, keep_logs, match, op_type_in
from npgxd.toolchain.record import parse_record
from tools.cann_sim.records import elementwise, encode

if TYPE_CHECKING:
    from pathlib import Path


def item(op_type: str, *shape: int) -> JobItem:
    record = parse_record("r", encode(elementwise(op_type, shape)))
    return JobItem(f"{op_type}{shape}", record.digest, op_type, record.trace, record.canonical, "")


def log(out: Path, name: str, text: str = "", *, succeeded: bool = False) -> Path:
    directory = out / "static_kernel_1_compile_log"
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{name}_compile_{'succ' if succeeded else 'error'}.log"
    path.write_text(text)
    return path


def test_progress_follows_the_names_of_logs(tmp_path: Path) -> None:
    watch = LogWatch((tmp_path / "nothing", tmp_path), [item("Add", 4), item("AddV2", 4), item("Mul", 4)])
    assert watch.progress(0.0).done == 0
    first = log(tmp_path, "static_kernel_Add_float16_ND_4_abc_d0")
    log(tmp_path, "static_kernel_AddV2_float16_ND_4_abc_d0")
    assert watch.progress(1.0).current == ("Add", "AddV2")
    first.rename(first.with_name(first.name.replace("error", "succ")))
    progress = watch.progress(3.5)
    assert (progress.done, progress.total, progress.current) == (1, 3, ("AddV2",))
    assert watch.cost_of("static_kernel_Add_float16_ND_4_abc_d0", 9.0) == 2.5
    assert watch.cost_of("never seen", 9.0) == 9.0


def test_two_variants_are_one_kernel_done(tmp_path: Path) -> None:
    watch = LogWatch((tmp_path,), [item("Add", 4)], kernels_each=2)
    log(tmp_path, "x_Add_d0", succeeded=True)
    assert watch.progress(0.0).done == 0
    log(tmp_path, "x_Add_d1", succeeded=True)
    assert watch.progress(0.0).done == 1


def test_a_log_counts_by_what_it_says_not_by_its_name(tmp_path: Path) -> None:
    log(tmp_path, "a_Add_1", "[INFO] compiling\n")
    assert complaints([tmp_path]) == []
    log(tmp_path, "b_Add_2", "[INFO] compiling\n[ERROR] E40021: tiling failed\n[INFO] bye\n")
    log(tmp_path, "c_Add_3", "[ERROR] opc: killed by signal 9\n")
    found = {one.log.name[:1]: one for one in complaints([tmp_path])}
    assert (found["b"].reason, found["b"].transient) == ("[ERROR] E40021: tiling failed", False)
    assert found["c"].transient


def test_a_complaint_goes_to_the_record_that_its_log_is_named_after(tmp_path: Path) -> None:
    log(tmp_path, "static_kernel_Add_float16_ND_8_64_x_d0", "[ERROR] eight")
    log(tmp_path, "static_kernel_Add_float16_ND_4_64_x_d0", "[ERROR] four")
    log(tmp_path, "static_kernel_Mul_float16_ND_4_64_x_d0", "[ERROR] mul")
    missing = [item("Add", 4, 64), item("Add", 8, 64), item("Add", 16, 64), item("AddV2", 4, 64)]
    found = {key: one.reason for key, one in match(missing, complaints([tmp_path])).items()}
    assert found == {"Add(4, 64)": "[ERROR] four", "Add(8, 64)": "[ERROR] eight"}


def test_the_longest_op_type_in_a_name_is_meant() -> None:
    assert op_type_in("static_kernel_AddV2_float_1", ["Add", "AddV2"]) == "AddV2"
    assert op_type_in("static_kernel_BiasAdd_float_1", ["Add"]) == ""


def test_a_few_failed_logs_are_kept_by_their_ends(tmp_path: Path) -> None:
    log(tmp_path, "x_Add_1", "-" * 100_000 + "\n[ERROR] why\n")
    log(tmp_path, "x_Add_2", succeeded=True)
    keep_logs([tmp_path], tmp_path / "kept")
    (kept,) = (tmp_path / "kept").iterdir()
    assert kept.read_text().endswith("[ERROR] why\n")
    assert kept.stat().st_size <= 16384


def test_a_log_that_is_a_link_or_a_pipe_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("[ERROR] secret")
    path = log(tmp_path, "x_Add_1")
    path.unlink()
    path.symlink_to(tmp_path / "secret")
    assert complaints([tmp_path]) == []
