"""Under torchrun the same call runs on torchrun's world."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

PROGRAM = """
import os, torch, torch.distributed as dist, labkit

def total(k):
    x = torch.tensor([k + dist.get_rank()])
    dist.all_reduce(x)
    return x.item(), dist.get_rank()

{body}
"""


def torchrun(body: str, tmp_path: Path, ranks: int = 4) -> subprocess.CompletedProcess[str]:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.format(body=textwrap.dedent(body)))
    return subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone",
         "--nproc-per-node", str(ranks), str(program)],
        capture_output=True, text=True, timeout=120, cwd=Path(__file__).parents[2],
    )  # fmt: skip


def test_results_and_traces_of_all_ranks_are_on_every_rank(tmp_path: Path) -> None:
    done = torchrun(
        """
        for again in range(2):
            run = labkit.launch(total, 1.0, backend="gloo")
            assert run.results == [(10.0, r) for r in range(4)], run.results
            ranks = {e.rank for e in run.trace.events if e.kind == "collective"}
            assert ranks == {0, 1, 2, 3}, ranks
            assert not dist.is_initialized()
        labkit.launch(total, 1.0, ranks=4, backend="gloo", trace=False)
        os.write(1, b"all well" + bytes([10]))  # in one piece
        """,
        tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("all well") == 4


def test_a_group_that_the_program_made_is_used_and_left_as_it_was(tmp_path: Path) -> None:
    done = torchrun(
        """
        dist.init_process_group("gloo")
        before = dist.group.WORLD
        run = labkit.launch(total, 2.0)
        assert run.results[0][0] == 5.0
        assert sum(e.kind == "collective" for e in run.trace.events) == 2
        assert dist.group.WORLD is before
        dist.barrier()
        dist.destroy_process_group()
        os.write(1, b"all well" + bytes([10]))  # in one piece
        """,
        tmp_path,
        ranks=2,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("all well") == 2


def test_another_number_of_ranks_is_refused(tmp_path: Path) -> None:
    done = torchrun("labkit.launch(total, 1.0, ranks=3)", tmp_path, ranks=2)
    assert done.returncode != 0
    assert "ranks=3, but torchrun has started 2" in done.stderr


def test_a_failure_is_told_by_the_rank_that_failed(tmp_path: Path) -> None:
    done = torchrun(
        """
        def work():
            if dist.get_rank() == 1:
                raise ValueError("only here")
        labkit.launch(work, backend="gloo")
        """,
        tmp_path,
        ranks=2,
    )
    assert done.returncode != 0
    assert "rank 1 failed" in done.stderr
    assert "only here" in done.stderr
