from __future__ import annotations

import re
from pathlib import Path

import pytest

from tools.cann_sim import Costs
from tools.cann_sim.records import elementwise, many, matmul, write_records

THREE = [matmul(4, 8, 16), elementwise("Add", (4, 8)), elementwise("Exp", (4, 8))]


def test_a_run_makes_a_package_and_says_so(shared):
    compiled = shared.compile(THREE)
    assert compiled.status == 0
    assert compiled.stdout == f"generate run package {compiled.package.name} success\n"
    assert re.fullmatch(r"static_kernel_\d{18}_\d+\.run", compiled.package.name)


def test_a_run_leaves_nothing_in_the_working_directory(shared):
    assert list(shared.compile(THREE).work.iterdir()) == []


def test_output_goes_to_the_working_directory_by_default(shared):
    params, work = shared.directory / "p", shared.directory / "w"
    write_records(params, THREE)
    work.mkdir()
    assert shared.op_compiler("-p", params, "-v", "Ascend910B3", "-f", cwd=work).returncode == 0
    (package,) = work.glob("*.run")
    assert {path.name for path in work.iterdir()} == {package.name, f"{package.stem}_compile_log"}


def test_output_can_name_the_package(shared):
    params = shared.directory / "p"
    write_records(params, THREE)
    named = shared.directory / "new" / "mine.run"
    done = shared.op_compiler("--op_params_dir", params, "--soc_version", "Ascend910B3", "--output", named, "-f")
    assert done.stdout == "generate run package mine.run success\n"
    listed = shared.run(named, "--list").stdout
    assert re.search(r"static_kernel_\d{18}_\d+/config/ascend910b/binary_info_config\.json", listed)


def test_the_working_directory_is_refused_as_input(shared):
    params = shared.directory / "p"
    write_records(params, THREE)
    for spelling in (params, Path(), params / ".." / "p"):
        done = shared.op_compiler("-p", spelling, "-v", "Ascend910B3", cwd=params)
        assert done.returncode == 1
        assert "must not be the working directory" in done.stderr
    assert shared.run("ls", params).stdout.count(".run") == 0


def test_count_prints_the_number_of_records(shared):
    params = shared.directory / "p"
    write_records(params, THREE)
    done = shared.op_compiler("-p", params, "-v", "Ascend910B3", "--count")
    assert (done.returncode, done.stdout) == (0, "3\n")


def test_without_follow_every_op_is_compiled_twice(shared):
    names = [name.split("/")[1] for name in shared.kernels(THREE, "-j", "4")]
    assert sorted(name[-4:] for name in names) == ["d0.o"] * 3 + ["d1.o"] * 3


def test_follow_takes_each_records_own_flag(shared):
    records = [elementwise("Add", (4,), deterministic=True), elementwise("Mul", (4,))]
    names = {name.split("/")[0]: name[-4:] for name in shared.kernels(records, "-f", "true")}
    assert names == {"Add": "d1.o", "Mul": "d0.o"}


def test_follow_takes_false_from_9_0(shared):
    assert len(shared.kernels(THREE, "--follow_op_params_jit", "false")) == 6


@pytest.mark.parametrize(("version", "takes_value"), [("8.5.0", False), ("9.0.0", True), ("9.1.0", True)])
def test_help_tells_whether_follow_takes_a_value(bench_for, version: str, takes_value: bool):
    bench = bench_for(version)
    shown = bench.op_compiler("--help").stdout
    assert f"SIMULATED CANN {version}" in shown
    assert ("-f [true]" in shown) == takes_value
    assert bench.compile(THREE, "-f").status == 0
    with_value = bench.compile(THREE, "-f", "true")
    assert (with_value.status == 0) == takes_value
    if not takes_value:
        assert "unrecognized arguments: true" in with_value.stderr


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (("-j", "0"), "job must be at least 1"),
        (("-j", "many"), "invalid int value"),
        (("-l", "loud"), "invalid choice"),
        (("--super_kernel_options", "a=b"), "needs enable_super_kernel"),
        (("--no-such-option",), "unrecognized arguments"),
        (("-f", "maybe"), "expected true or false"),
        (("-m", "guess"), "invalid choice"),
    ],
)
def test_bad_options_are_refused(shared, options: tuple[str, ...], complaint: str):
    compiled = shared.compile(THREE, *options)
    assert compiled.status != 0
    assert complaint in compiled.stderr
    assert compiled.packages == []


def test_unknown_socs_and_families_without_ops_are_refused(shared):
    assert "unknown soc_version 'Ascend9'" in shared.compile(THREE, soc="Ascend9").stderr
    assert "no ops for Ascend310P3" in shared.compile(THREE, soc="Ascend310P3").stderr


def test_super_kernels_are_for_a2_only(shared):
    assert shared.compile(THREE, "-f", "true", "--enable_super_kernel", "--super_kernel_options", "a=1:b=2").status == 0
    refused = shared.compile(THREE, "--enable_super_kernel", soc="Ascend910_9382")
    assert "not supported on Ascend910_9382" in refused.stderr


def test_tune_mode_is_deprecated_in_9_1(bench_for):
    assert "deprecated" in bench_for("9.1.0").compile(THREE, "-m", "tune").stderr
    assert bench_for("9.0.0").compile(THREE, "-m", "tune").stderr == ""


@pytest.mark.parametrize("variable", ["ASCEND_HOME_PATH", "ASCEND_OPP_PATH", "PATH", "PYTHONPATH"])
def test_the_environment_must_be_sourced(shared, variable: str):
    shared.environ = {variable: "/usr/bin:/bin" if variable == "PATH" else ""}
    compiled = shared.compile(THREE)
    assert compiled.status == 1
    assert variable in compiled.stderr
    assert "set_env.sh" in compiled.stderr


def test_logs_are_renamed_when_their_kernel_succeeds(shared):
    compiled = shared.compile([*THREE, elementwise("NoSuchOp", (4,))])
    assert len(compiled.logs("succ")) == 3
    (failed,) = compiled.logs("error")
    assert "op NoSuchOp is not implemented for ascend910b" in failed.read_text()


def test_an_op_without_implementation_is_left_out_with_status_0(shared):
    compiled = shared.compile([*THREE, elementwise("NoSuchOp", (4,))])
    assert compiled.status == 0
    assert "NoSuchOp" in compiled.stdout
    assert "NoSuchOp" not in shared.run(compiled.package, "--list").stdout


def test_nothing_compiled_means_no_package(shared):
    compiled = shared.compile([elementwise("NoSuchOp", (4,))])
    assert (compiled.status, compiled.packages) == (1, [])
    assert "no op was compiled" in compiled.stderr


def test_a_file_that_is_no_record_is_skipped_by_name(shared):
    params = shared.directory / "p"
    write_records(params, THREE)
    (params / "half.json").write_text('{"op_type": "Add", "inp')
    (params / "evil.json").write_text('{"op_type": "../../x", "inputs": [], "outputs": [], "attrs": []}')
    (params / "bare.json").write_text('{"op_type": "Add", "inputs": [{"name": "x"}], "outputs": [], "attrs": []}')
    (params / "notes.txt").write_text("not a record")
    done = shared.op_compiler("-p", params, "-v", "Ascend910B3", "-o", shared.directory / "o", "-f")
    assert done.returncode == 0
    assert all(f"skipped {name}.json" in done.stdout for name in ("half", "evil", "bare"))
    assert len(list((shared.directory / "o").glob("*_compile_log/*"))) == 3


def test_log_level_shows_each_kernel_on_the_terminal(shared):
    assert shared.compile(THREE, "-f", "true", "-l", "info").stdout.count("[INFO] compile static_kernel_") == 3
    assert shared.compile(THREE, "-f", "true", "-l", "null").stdout.count("[INFO]") == 0


def test_system_logs_go_to_home(shared):
    shared.compile(THREE)
    (log,) = (shared.directory / "home/ascend/log").rglob("plog-*.log")
    assert "generate run package" in log.read_text()


def test_the_home_is_not_written_but_for_its_run_log(bench):
    def listing() -> set[Path]:
        return set(bench.cann.home.rglob("*"))

    before = listing()
    bench.compile(THREE)
    assert listing() - before == {bench.cann.home / "sim-runs.jsonl"}


def test_runs_are_counted_with_their_records(bench):
    bench.compile(THREE)
    bench.compile(THREE[:1], "-j", "2")
    bench.op_compiler("--help")
    first, second = bench.cann.runs()
    assert [op.op_type for op in first.ops] == ["Add", "Exp", "MatMulV2"]
    assert (first.status, len(first.compiled), len(second.compiled)) == (0, 3, 2)
    assert second.ops[0].record == first.ops[2].record
    assert second.argv[-2:] == ("-j", "2")
    assert second.cwd.endswith("run2/work")


def test_jobs_really_run_in_parallel_and_are_not_exceeded(bench, end_group):
    bench.cann.order("Add", "hang")
    process, group = bench.start_hanging([elementwise("Add", (size,)) for size in (4, 5, 6, 7)], "-f", "-j", "3", count=3)
    names = [Path(f"/proc/{pid}/comm").read_text().strip() for pid in group]
    end_group(process)
    assert (names.count("opc"), names.count("bisheng")) == (3, 3)


def test_one_job_compiles_one_kernel_at_a_time_longest_first(bench):
    bench.cann.set_costs(Costs(per_op_s=0.01, per_op_type={"Exp": 0.2, "Add": 0.1}))
    compiled = bench.compile(
        [elementwise("Mul", (4,)), elementwise("Add", (4,)), elementwise("Exp", (4,))], "-f", "-j", "1", "-l", "info"
    )
    order = re.findall(r"compile static_kernel_(\w+?)_float16.*success", compiled.stdout)
    assert order == ["Exp", "Add", "Mul"]


def test_a_compile_of_many_records_works_without_the_repository(shared):
    shared.environ = {"PYTHONHOME": "", "PYTHONSAFEPATH": "1"}
    compiled = shared.compile(many(64), "-f", "-j", "8")
    assert compiled.status == 0
    assert len(compiled.logs("succ")) == 64
