"""The command drafter: how it is run, what is taken from it, and that it really ends."""

import asyncio
import errno
import json
import os
import resource
import signal
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from app.drafters import process
from app.drafters.command import allowed_environment
from app.drafters.process import Limits
from app.errors import DrafterError
from tests.drafters import CLAIM, STORY, Bench, git, pulse, repository_in
from tests.locks import until

ROOT = Path(__file__).parent.parent
PATCH = "diff --git a/x b/x\nnew file mode 100644\n--- /dev/null\n+++ b/x\n@@ -0,0 +1 @@\n+x\n"
ANSWER = json.dumps({"summary": "Did it", "patch": PATCH})
SAMPLE = (sys.executable, "-P", "-m", "app.drafters.sample")

#: Children in the group, an orphan in a session of its own, and one that ignores SIGTERM.
TREE = """
exec 9> {pulse}
setsid sh -c 'trap "" TERM; sleep 300 & sleep 300' &
(sh -c 'sleep 300 & exec sleep 300' &)
sleep 300 &
echo started >&9
"""


@pytest.fixture
def bench(tmp_path):
    return Bench(tmp_path / "state")


async def draft(drafter, *, claim=CLAIM, story=STORY):
    return await drafter.draft(claim, story, conversation=(), previous_patch=None)


async def failure(drafter):
    with pytest.raises(DrafterError) as failed:
        await draft(drafter)
    return str(failed.value)


def answer(**document):
    """A shell command that answers on stdout."""
    return f"cat <<'EOF'\n{json.dumps(document)}\nEOF\n"


# --- what is taken from it -------------------------------------------------------------------


async def test_without_a_repository_the_patch_is_the_one_in_the_result(bench):
    """It runs in an empty directory, and answers in the file that it was named."""
    script = f"ls -A >&2; cat > $DRAFTGATE_RESULT_FILE <<'EOF'\n{ANSWER}\nEOF\necho noise"
    made = await draft(bench.shell(script))

    assert (made.summary, made.patch) == ("Did it", PATCH)
    assert bench.left_over() == []


async def test_the_result_may_be_printed(bench):
    """Where there is no result file, stdout is read."""
    made = await draft(bench.shell(answer(patch=PATCH, cost_usd=0.25, meta={"model": "m"})))

    assert (made.patch, made.cost_usd, made.meta) == (PATCH, 0.25, {"model": "m"})


async def test_what_is_printed_in_a_worktree_is_the_summary(bench, tmp_path):
    """A drafter that knows nothing of the contract is of use all the same."""
    script = "echo x > new; printf '\\033[1mDid it\\033[0m {for now}\\n'"
    made = await draft(bench.shell(script, repository=repository_in(tmp_path)))

    assert made.summary == "Did it {for now}"


async def test_a_document_printed_in_a_worktree_is_the_result(bench, tmp_path):
    """The contract holds with and without the file."""
    script = f"echo x > new; {answer(summary='Did it')}"
    made = await draft(bench.shell(script, repository=repository_in(tmp_path)))

    assert made.summary == "Did it"


@pytest.mark.parametrize("with_repository", [False, True])
async def test_questions_come_without_a_patch(bench, tmp_path, with_repository):
    """What was changed before the drafter knew better is not handed out."""
    repository = repository_in(tmp_path) if with_repository else None
    script = f"echo x > new; {answer(questions=['Which?'], patch=PATCH, cost_usd=1)}"
    made = await draft(bench.shell(script, repository=repository))

    assert (made.questions, made.patch, made.cost_usd) == (("Which?",), "", 1.0)


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("true", "the drafter gave no patch and asked nothing"),
        (answer(patch=" \n"), "the drafter gave no patch and asked nothing"),
        ("echo done", "the result is not JSON"),
        (answer(patch="not a patch"), "git apply failed: error: No valid patches in input"),
        (answer(patch=PATCH.replace("+x\n", "")), "git apply failed: error: corrupt patch"),
        (answer(patch=PATCH.replace("b/x", "b/../x")), "the patch leaves the tree: '../x'"),
        (answer(patch=PATCH.replace("b/x", "b//etc/x")), "the patch leaves the tree: '/etc/x'"),
        (answer(patch=PATCH.replace("b/x", "b/.GIT/x")), "the patch leaves the tree: '.GIT/x'"),
        ("ln -s /etc/passwd $DRAFTGATE_RESULT_FILE", "the result file can't be read"),
        ("mkfifo $DRAFTGATE_RESULT_FILE", "the result file is not a regular file"),
        ("mkdir $DRAFTGATE_RESULT_FILE", "the result file is not a regular file"),
        ("truncate -s 9M $DRAFTGATE_RESULT_FILE", "the result file is larger than 8 MiB"),
    ],
)
async def test_an_answer_that_can_t_be_used_is_a_failure(bench, script, reason):
    """The first line says why."""
    assert reason in (await failure(bench.shell(script))).partition("\n")[0]


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("exit 1", "exited with code 1"),
        ("exit 126", "exited with code 126 (a command can't be executed)"),
        ("no-such-agent", "exited with code 127 (a command was not found)"),
        ("kill -9 $$", "was killed by SIGKILL"),
        ("sh -c 'kill -9 $$'", "exited with code 137 (SIGKILL)"),
        ("kill -SEGV $$", "was killed by SIGSEGV"),
        ("exit 255", "exited with code 255"),
    ],
)
async def test_only_exit_code_0_is_a_success(bench, script, reason):
    """Whatever it answered before; a signal is named."""
    said = await failure(bench.shell(f"{answer(patch=PATCH)}{script}; exit $?"))

    assert said.partition("\n")[0] == f"the drafter {reason}"


async def test_a_failure_ends_with_what_the_drafter_complained_about(bench):
    """The last of stderr, short enough to be kept, with nothing that can't be shown."""
    script = (
        r"yes noise | head -c 300000 >&2; printf '\033[31mno \000\377 key\033[0m\n' >&2; exit 1"
    )
    said = await failure(bench.shell(script))

    assert said.startswith("the drafter exited with code 1\n…")
    assert said.endswith("noise\nno \ufffd key")
    assert len(said) <= 2_000


async def test_a_command_that_is_not_there_is_told_from_a_directory_that_is_not(bench, tmp_path):
    """One is for who installed it, the other for us."""
    (tmp_path / "plain").write_text("")

    assert await failure(bench.drafter("no-such-agent")) == "command not found: no-such-agent"
    assert "Permission denied" in await failure(bench.drafter(str(tmp_path / "plain")))
    with pytest.raises(DrafterError, match=f"^working directory missing: {tmp_path}/gone$"):
        await process.run(
            ["true"], cwd=tmp_path / "gone", environment=os.environ, timeout_seconds=9
        )


async def test_arguments_that_no_process_takes_are_a_failure(bench):
    """They come from settings; the worker lives on."""
    assert "can't be started" in await failure(bench.drafter("echo", "a\0b"))
    assert "can't be started" in await failure(bench.drafter("echo", "x" * 300_000))


async def test_limits_that_no_process_takes_are_a_failure(bench):
    """A command that never began is not one that ended with a code."""
    too_large, too_small = Limits(memory_bytes=2**64), Limits(memory_bytes=2**20)

    assert "can't be started: true: " in await failure(bench.drafter("true", limits=too_large))
    crowded = bench.drafter("true", *["x" * 100_000] * 9, limits=too_small)
    assert "can't be started: true: MemoryError" in await failure(crowded)


#: A supervisor on a machine that has no room for one more process.
NO_ROOM = """
import errno, os, runpy

def fork():
    raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))

os.fork = fork
runpy.run_path({supervisor!r}, run_name="__main__")
"""


async def test_no_room_for_the_command_s_process_is_told(bench, tmp_path, monkeypatch):
    """Rather than that it was killed."""
    crowded = tmp_path / "crowded.py"
    crowded.write_text(NO_ROOM.format(supervisor=process.SUPERVISOR))
    monkeypatch.setattr(process, "SUPERVISOR", str(crowded))

    more_than_a_socket_holds = ["x" * 100_000] * 9
    said = await failure(bench.drafter("true", *more_than_a_socket_holds))
    assert said == f"command can't be started: true: {os.strerror(errno.EAGAIN)}"


# --- what it is given ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "title", ["a\0b", "\ud800", "x" * 200_000, "$(touch {trace})", "`touch {trace}`; touch {trace}"]
)
async def test_a_story_s_text_is_only_ever_data(bench, tmp_path, title):
    """It goes by stdin, never by arguments, environment or a shell; the name is made of a slug."""
    trace = tmp_path / "ran"
    title = title.format(trace=trace)
    script = f"""
import json, sys
told = json.load(sys.stdin)
print(json.dumps({{"summary": told["story"]["title"], "patch": {PATCH!r}}}))
"""
    made = await draft(bench.python(script), story=replace(STORY, title=title))

    assert made.summary[:100] == title[:100].replace("\0", "\ufffd").replace("\ud800", "\ufffd")
    assert not trace.exists()


async def test_the_request_is_a_file_too(bench):
    """Some agents are easier to point at a file."""
    await draft(bench.shell(f"cmp - $DRAFTGATE_REQUEST_FILE && {answer(patch=PATCH)}"))


async def test_a_drafter_that_does_not_read_its_input_holds_nothing_up(bench):
    """However long the story is."""
    story = replace(STORY, description="x" * 3_000_000)

    assert (await draft(bench.shell(answer(patch=PATCH)), story=story)).patch == PATCH


async def test_the_input_ends(bench):
    """A drafter that waits for more of it waits for nothing."""
    assert (await draft(bench.shell(f"cat > /dev/null; {answer(patch=PATCH)}"))).patch == PATCH


async def test_a_drafter_sees_no_variable_but_those_it_may(bench):
    """An allow-list; no name in it brings in a setting of this service."""
    environ = {
        "PATH": os.environ["PATH"],
        "LC_ALL": "C.UTF-8",
        "AGENT_KEY": "allowed",
        "DRAFTGATE_SHORTCUT_SECRETS": "hush",
        "DRAFTGATE_DATABASE_URL": "hush",
        "PGPASSWORD": "hush",
        "GIT_DIR": "hush",
    }
    allowed = allowed_environment(environ, ["AGENT_KEY", "DRAFTGATE_DATABASE_URL"])
    script = "import json, os; print(json.dumps({'patch': ' ', 'questions': [*os.environ]}))"
    made = await draft(bench.python(script, environment=allowed))

    assert set(made.questions) == {
        *("PATH", "LC_ALL", "AGENT_KEY", "GIT_TERMINAL_PROMPT", "GIT_SSH_COMMAND"),
        *("GIT_CEILING_DIRECTORIES", "DRAFTGATE_REQUEST_FILE", "DRAFTGATE_RESULT_FILE"),
    }


async def test_the_supervisor_shows_no_more_than_the_drafter_may_see(bench, monkeypatch):
    """The drafter can read its parent's environment."""
    monkeypatch.setenv("DRAFTGATE_SHORTCUT_SECRETS", "hush-hush")
    script = f"! grep -q hush /proc/$PPID/environ /proc/$PPID/cmdline && {answer(patch=PATCH)}"

    assert (await draft(bench.shell(script))).patch == PATCH


async def test_an_empty_directory_is_in_no_repository(bench, tmp_path):
    """The state directory may lie in a checkout, which is not what is drafted against."""
    git(tmp_path, "init", "--quiet")
    script = f"! git rev-parse --show-toplevel && {answer(patch=PATCH)}"

    assert (await draft(bench.shell(script))).patch == PATCH


async def test_a_drafter_that_prints_shows_that_it_is_alive(bench):
    """On either stream."""
    printed = []
    drafter = bench.shell(f"echo working >&2; {answer(patch=PATCH)}")

    await drafter.draft(
        CLAIM,
        STORY,
        conversation=(),
        previous_patch=None,
        progress=lambda: printed.append(1),
    )

    assert printed


# --- what it may use -------------------------------------------------------------------------


async def test_a_flood_of_output_costs_no_memory_and_stops_nothing(bench, tmp_path):
    """Both streams are drained all the time, with and without ends of lines; the end is kept."""
    script = (
        "yes 2>/dev/null | head -c 1500000000 & head -c 500000000 /dev/zero >&2; wait;"
        " echo x > new; echo; echo The end"
    )
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    made = await draft(bench.shell(script, repository=repository_in(tmp_path)))

    assert made.summary.endswith("y\n\nThe end")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib < 64 * 1024


@pytest.mark.parametrize(
    ("limits", "script", "reason"),
    [
        (Limits(memory_bytes=200 * 2**20), "x = bytearray(400 * 2**20)", "MemoryError"),
        (Limits(cpu_seconds=1), "while True: pass", "was killed by SIGXCPU"),
        (Limits(file_bytes=2**20), "open('x', 'wb').write(bytes(2**21))", "File too large"),
    ],
)
async def test_a_drafter_that_takes_too_much_fails(bench, limits, script, reason):
    """Memory, processor time and file sizes have limits."""
    assert reason in await failure(bench.python(script, limits=limits))


# --- that it ends ----------------------------------------------------------------------------


async def test_running_out_of_time_ends_the_whole_tree(bench, tmp_path):
    """Children, orphans, other sessions and those that ignore SIGTERM."""
    async with pulse(tmp_path) as seen:
        script = TREE.format(pulse=seen.path) + "sleep 300"
        drafter = bench.shell(script, timeout_seconds=1, grace_seconds=0.2)

        assert await failure(drafter) == "the drafter took longer than 1 s"
        assert await seen.stopped() == "started"
    assert bench.left_over() == []


async def test_cancelling_ends_the_whole_tree(bench, tmp_path):
    """A stopped story or a lost claim leaves no process behind, nor a worktree."""
    async with pulse(tmp_path) as seen:
        script = TREE.format(pulse=seen.path) + "sleep 300"
        drafting = asyncio.create_task(draft(bench.shell(script, grace_seconds=0.2)))
        assert await seen.said() == "started"

        drafting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await drafting

        await seen.stopped()
        assert bench.left_over() == []


async def test_cancelling_twice_ends_the_whole_tree_all_the_same(bench, tmp_path):
    """Impatience does not cut the clean-up short."""
    async with pulse(tmp_path) as seen:
        script = f"trap 'echo asked >&9' TERM\n{TREE.format(pulse=seen.path)}"
        script += "while :; do sleep 0.01; done"
        drafting = asyncio.create_task(draft(bench.shell(script, grace_seconds=0.2)))
        assert await seen.said() == "started"

        drafting.cancel()
        assert await seen.said() == "asked"
        drafting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await drafting

        await seen.stopped()
        assert bench.left_over() == []


async def test_a_drafter_is_asked_to_end_before_it_is_made_to(bench, tmp_path):
    """SIGTERM, and time to save what can be saved."""
    async with pulse(tmp_path) as seen:
        script = f"exec 9> {seen.path}; trap 'echo saved >&9; exit 0' TERM; echo go >&9; "
        drafting = asyncio.create_task(
            draft(bench.shell(script + "while :; do sleep 0.01; done", grace_seconds=30))
        )
        assert await seen.said() == "go"

        drafting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await drafting

        assert await seen.stopped() == "saved"


async def test_what_a_finished_drafter_left_running_is_ended(bench, tmp_path):
    """A server started for a test run does not outlive the draft."""
    async with pulse(tmp_path) as seen:
        made = await draft(bench.shell(TREE.format(pulse=seen.path) + answer(patch=PATCH)))

        assert made.patch == PATCH
        assert await seen.stopped() == "started"


async def test_a_drafter_that_kills_its_supervisor_goes_too(bench, tmp_path):
    """By mistake, as `kill -9 0` does."""
    async with pulse(tmp_path) as seen:
        script = f"exec 9> {seen.path}; sleep 300 & echo started >&9; kill -9 $PPID; sleep 300"

        assert await failure(bench.shell(script)) == "the drafter was killed by SIGKILL"
        assert await seen.stopped() == "started"


async def test_a_stopped_supervisor_is_not_waited_for_for_ever(bench, tmp_path, monkeypatch):
    """SIGSTOP to the whole group is no way to stay."""
    monkeypatch.setattr(process, "KILL_SECONDS", 0.2)
    async with pulse(tmp_path) as seen:
        script = f"exec 9> {seen.path}; echo started >&9; kill -STOP 0"
        drafter = bench.shell(script, timeout_seconds=1, grace_seconds=0.2)

        assert "took longer" in await failure(drafter)
        assert await seen.stopped() == "started"


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
async def test_the_death_of_the_worker_ends_the_whole_tree(bench, tmp_path, loop):
    """SIGKILL, on both event loops: nothing of the worker's runs, and nothing is left running."""
    async with pulse(tmp_path) as seen:
        worker = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", WORKER, loop, bench.state_dir),
            TREE.format(pulse=seen.path) + "sleep 300",
            cwd=ROOT,
        )
        assert await seen.said() == "started"

        worker.kill()
        await worker.wait()

        await seen.stopped()


async def test_a_drafter_ends_with_its_supervisor_even_if_no_worker_can_act(bench, tmp_path):
    """Each watches over the next: the worker is stopped, the supervisor killed."""
    os.mkfifo(tmp_path / "go")
    async with pulse(tmp_path) as seen:
        script = f"exec 9> {seen.path}; echo started >&9; read go < {tmp_path}/go; "
        worker = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", WORKER, "asyncio", bench.state_dir),
            script + "kill -9 $PPID; exec sleep 300",
            cwd=ROOT,
        )
        try:
            assert await seen.said() == "started"
            worker.send_signal(signal.SIGSTOP)
            (tmp_path / "go").write_text("go\n")

            await seen.stopped()
        finally:
            worker.kill()
            await worker.wait()


async def parent_of_a_command(tmp_path, spares):
    """The supervisor that a command finds above it."""
    finished = await process.run(
        ["sh", "-c", "echo $PPID"],
        cwd=tmp_path,
        environment=os.environ,
        timeout_seconds=9,
        spares=spares,
    )
    return int(finished.stdout)


async def test_a_command_finds_a_supervisor_that_waits_already(tmp_path):
    """And the next one finds another, though the first has gone with its command."""
    async with process.Spares(1) as spares:
        waiting = [tree.process.pid for tree in spares.ready]
        found = await parent_of_a_command(tmp_path, spares)
        await until(lambda: asyncio.sleep(0, bool(spares.ready)))
        waiting += [tree.process.pid for tree in spares.ready]
        found = [found, await parent_of_a_command(tmp_path, spares)]

    assert found == waiting
    assert len(set(found)) == 2


async def test_a_supervisor_that_has_died_waiting_harms_no_command(tmp_path):
    """Another one is started in its place."""
    async with process.Spares(1) as spares:
        (waiting,) = spares.ready
        waiting.process.kill()
        await waiting.process.wait()

        assert await parent_of_a_command(tmp_path, spares) != waiting.process.pid


async def test_who_waits_for_a_job_ends_with_its_worker(tmp_path):
    """The end of the control socket is all that a worker that is killed leaves behind."""
    async with process.Spares(1) as spares:
        (waiting,) = spares.ready
        waiting.control.close()

        await waiting.process.wait()


def children_of(pid: int) -> str:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text()


async def test_a_process_that_stands_still_while_it_waits_ends_with_its_worker(tmp_path):
    """It can't see the end of the control socket, and need not."""
    async with process.Spares(1) as spares:
        (waiting,) = spares.ready
        await until(lambda: asyncio.sleep(0, bool(children_of(waiting.process.pid))))
        os.kill(int(children_of(waiting.process.pid)), signal.SIGSTOP)
        waiting.control.close()

        await asyncio.wait_for(waiting.process.wait(), 10)


async def test_the_event_loop_of_the_service_will_do(bench):
    """The same on uvloop."""
    worker = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", WORKER, "uvloop", bench.state_dir, answer(patch=PATCH)),
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
    )
    printed, _ = await worker.communicate()

    assert printed.decode() == f"{PATCH}\n"


async def test_a_command_has_its_three_streams_and_no_other_descriptor(bench):
    """Neither what holds its directory, nor what its supervisor is spoken to by."""
    script = """
import os, sys
from contextlib import suppress
for number in range(256):
    with suppress(OSError):
        os.fstat(number)
        print(number, file=sys.stderr)
sys.exit(1)
"""
    said = await failure(bench.python(script))

    assert said.split("\n")[1:] == ["0", "1", "2"]


@pytest.mark.parametrize("number", [signal.SIGPIPE, signal.SIGXFSZ])
async def test_a_command_ignores_no_signal_that_python_does(bench, number):
    """SIGPIPE, for one, ends who writes to nobody."""
    said = await failure(bench.shell("sed -n 's/^SigIgn:\t//p' /proc/$$/status >&2; exit 1"))

    ignored = int(said.split("\n")[1], 16)
    assert not ignored & 1 << number - 1


async def test_a_run_leaves_no_descriptor_open_wherever_it_is_cut_off(bench):
    """Cancelled at every step of the way, before, while and after a process is started."""
    drafter = bench.shell("exit 1", grace_seconds=0)
    await failure(drafter)
    before = len(os.listdir("/proc/self/fd"))

    for steps in range(60):
        drafting = asyncio.create_task(draft(drafter))
        for _ in range(steps):
            await asyncio.sleep(0)
        drafting.cancel()
        with suppress(asyncio.CancelledError):
            await drafting

    assert len(os.listdir("/proc/self/fd")) == before
    assert bench.left_over() == []


# --- the sample ------------------------------------------------------------------------------


@pytest.mark.parametrize("with_repository", [False, True])
async def test_the_sample_s_patch_applies(bench, tmp_path, with_repository):
    """What `draftgate dev` shows is a real patch."""
    repository = repository_in(tmp_path)
    story = replace(STORY, title="Fix\r\nit", description="* one\r\n\n- [ ] two\u2028\r three")
    drafter = bench.drafter(*SAMPLE, repository=repository if with_repository else None)

    made = await draft(drafter, story=story)

    git(repository, "apply", "-", stdin=made.patch.encode())
    assert "- [ ] one\n- [ ] two" in (repository / "drafts/sc-41.md").read_text()
    assert made.summary == "Writes the story down in `drafts/sc-41.md`."


async def test_the_sample_may_fail_at_first(bench):
    """A share of the stories, always the same, and only the first time."""
    drafter = bench.drafter(*SAMPLE, "--fail-first-percent", "100")

    assert "failing on purpose" in await failure(drafter)
    assert (await draft(drafter, claim=replace(CLAIM, attempt=2))).patch


async def test_a_drafter_may_run_in_a_sandbox(bench, tmp_path, require_tool):
    """The recipe in docs/drafters.md: it sees its own run, and no process but its own."""
    require_tool("bwrap")
    wrapper = (ROOT / "docs/drafters.md").read_text().split("```sh sandbox\n")[1].split("```")[0]
    (tmp_path / "sandbox").write_text(wrapper)
    script = f"""
cat /proc/[0-9]*/environ > /dev/null
! grep -qs {os.getpid()} /proc/[0-9]*/status && ! test -e {tmp_path}/sandbox &&
    git log --oneline > log && echo '{{"summary": "Did it"}}' > $DRAFTGATE_RESULT_FILE
"""
    made = await draft(
        bench.drafter(
            *("sh", str(tmp_path / "sandbox"), "sh", "-c", script),
            repository=repository_in(tmp_path),
        )
    )

    assert "Change files" in made.patch
    assert made.summary == "Did it"


async def test_a_sandboxed_tree_ends_too(bench, tmp_path, require_tool):
    """Processes in a namespace of their own are children all the same."""
    require_tool("bwrap")
    async with pulse(tmp_path) as seen:
        wrap = "exec bwrap --unshare-pid --bind / / --proc /proc --dev /dev sh -c '"
        script = wrap + TREE.format(pulse=seen.path).replace("'", "'\\''") + "sleep 300'"
        drafting = asyncio.create_task(draft(bench.shell(script, grace_seconds=0.2)))
        assert await seen.said() == "started"

        drafting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await drafting

        await seen.stopped()


WORKER = """
import asyncio, sys
from pathlib import Path
import uvloop
from tests.drafters import CLAIM, STORY, Bench

loop, state_dir, script = sys.argv[1:]
drafter = Bench(Path(state_dir)).shell(script)
runner = asyncio.Runner(loop_factory=uvloop.new_event_loop if loop == "uvloop" else None)
with runner:
    made = runner.run(drafter.draft(CLAIM, STORY, conversation=(), previous_patch=None))
    print(made.patch)
"""
