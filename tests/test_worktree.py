"""Worktrees: where a drafter works, what its patch holds, and what it can't get at."""

import asyncio
import fcntl
import os
import shutil
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from app.drafters.git import Git, git_environment
from app.drafters.worktree import Repository, workplace
from app.errors import DrafterError
from tests.drafters import CLAIM, STORY, Bench, commit, git, pulse, repository_in, until

LATIN_1 = "Grüße\n".encode("latin-1")
BINARY = bytes(range(256)) * 8
LATE_NUL = b"text\n" * 4_000 + b"\0\n"


@pytest.fixture
def bench(tmp_path):
    return Bench(tmp_path / "state")


@pytest.fixture
def repository(tmp_path):
    return repository_in(tmp_path)


async def draft(drafter):
    return await drafter.draft(CLAIM, STORY, conversation=(), previous_patch=None)


def applied(patch, repository, directory):
    """A clean clone of the repository with the patch applied, as a person would do it."""
    clone = directory / "clone"
    git(directory, "clone", "--quiet", repository, clone)
    git(clone, "apply", "--index", "-", stdin=patch.encode())
    return clone


def source(repository, state_dir, base_ref="HEAD"):
    runner = Git(environment=git_environment(os.environ), timeout_seconds=30)
    return Repository(url=str(repository), base_ref=base_ref, state_dir=state_dir, git=runner)


def is_free(lock):
    """Whether no process holds the lock."""
    with lock.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


# --- what a patch holds ----------------------------------------------------------------------


async def test_a_patch_carries_every_kind_of_change(bench, repository, tmp_path):
    """New, changed, deleted, renamed, binary, mode, link: applied to the base, all is there."""
    commit(repository, old__txt="to be moved\n" * 9, gone__txt="x\n", blob=BINARY, run__sh="#!\n")
    script = """
import os, pathlib
pathlib.Path("main.py").write_text("print('changed')\\r\\n")
pathlib.Path("dir/sub").mkdir(parents=True)
pathlib.Path("dir/sub/neü name.txt").write_text("no end of line")
pathlib.Path("empty").write_text("")
pathlib.Path("old.txt").rename("dir/moved.txt")
pathlib.Path("gone.txt").unlink()
pathlib.Path("blob").write_bytes(bytes(range(255, -1, -1)) * 8)
os.chmod("run.sh", 0o755)
os.symlink("/etc/passwd", "link")
os.symlink("dir", "dirlink")
"""
    made = await draft(bench.python(script, repository=repository))

    clone = applied(made.patch, repository, tmp_path)
    assert (clone / "main.py").read_bytes() == b"print('changed')\r\n"
    assert (clone / "dir/sub/neü name.txt").read_text() == "no end of line"
    assert (clone / "empty").read_bytes() == b""
    assert (clone / "dir/moved.txt").read_text().startswith("to be moved")
    assert not (clone / "gone.txt").exists()
    assert (clone / "blob").read_bytes() == BINARY[::-1]
    assert os.access(clone / "run.sh", os.X_OK)
    assert os.readlink(clone / "link") == "/etc/passwd"
    assert os.readlink(clone / "dirlink") == "dir"
    assert "rename from old.txt" in made.patch
    assert "root:" not in made.patch


async def test_files_that_are_not_utf_8_are_carried_byte_by_byte(bench, repository, tmp_path):
    """A patch is UTF-8 text: what is not goes as a binary patch, the rest stays readable."""
    commit(repository, german__txt=LATIN_1, long__txt=b"text\n" * 4_000, plain__txt="plain\n")
    script = f"""
import pathlib
pathlib.Path("german.txt").write_bytes({LATIN_1 * 2!r})
pathlib.Path("long.txt").write_bytes({LATE_NUL!r})
pathlib.Path("plain.txt").write_text("plainer\\n")
"""
    made = await draft(bench.python(script, repository=repository))

    clone = applied(made.patch, repository, tmp_path)
    assert (clone / "german.txt").read_bytes() == LATIN_1 * 2
    assert (clone / "long.txt").read_bytes() == LATE_NUL
    assert "\0" not in made.patch
    assert "+plainer" in made.patch


async def test_what_the_drafter_committed_is_in_the_patch(bench, repository):
    """A drafter may commit, on any branch, with or without changes after it."""
    script = (
        "git checkout -q -b feature && echo one > one && git add one && git commit -qm One"
        " && echo two > two && git rm -q README"
    )
    made = await draft(bench.shell(script, repository=repository))

    assert "b/one" in made.patch
    assert "b/two" in made.patch
    assert "deleted file mode 100644" in made.patch


async def test_a_change_as_quick_and_as_long_as_the_old_content_is_seen(bench, repository):
    """Neither the size nor the time of a file tells that it is the same."""
    script = "touch -r main.py t; echo 'print(\"hELLO\")' > main.py; touch -r t main.py; rm t"
    made = await draft(bench.shell(script, repository=repository))

    assert "hELLO" in made.patch


async def test_ignored_files_are_left_out(bench, repository):
    """What .gitignore names is not part of a draft."""
    commit(repository, __gitignore="build/\n")
    script = "mkdir build; echo x > build/out; echo y > kept"
    made = await draft(bench.shell(script, repository=repository))

    assert "build" not in made.patch
    assert "b/kept" in made.patch


async def test_files_are_taken_as_they_are_whatever_their_attributes_say(bench, repository):
    """A repository that breaks its own .gitattributes does not leak into every draft."""
    (repository / ".git" / "info").mkdir(exist_ok=True)
    unset = "* -text -ident -working-tree-encoding\n"
    (repository / ".git" / "info" / "attributes").write_text(unset)
    attributes = "*.txt text\n*.bat eol=crlf\n*.id ident\n*.u16 working-tree-encoding=UTF-16\n"
    commit(repository, dos__txt="a\r\n", run__bat="a\n", x__id="$Id: old $\n", x__u16="ü\n")
    commit(repository, __gitattributes=attributes)

    made = await draft(
        bench.shell("git status --short > new; printf 'b\\r\\n' >> dos.txt", repository=repository)
    )

    assert made.patch.count("diff --git") == 2
    assert "+b\r\n" in made.patch
    assert "+?? new" in made.patch


async def test_a_repository_inside_the_tree_is_left_out(bench, repository):
    """A patch can't carry a repository, and a clone that was made to look at it is no draft."""
    script = "git init -q inner && cd inner && git commit -q --allow-empty -m x; echo y > ../kept"
    made = await draft(bench.shell(script, repository=repository))

    assert made.patch.count("diff --git") == 1


async def test_a_submodule_is_neither_fetched_nor_a_change(bench, repository, tmp_path):
    """Nothing but the repository itself is ever fetched."""
    git(repository, "update-index", "--add", "--cacheinfo", f"160000,{'1' * 40},sub")
    commit(repository, __gitmodules='[submodule "sub"]\n\tpath = sub\n\turl = ../other\n')
    made = await draft(bench.shell("echo y > kept", repository=repository))

    assert made.patch.count("diff --git") == 1


async def test_no_change_and_no_question_is_a_failure(bench, repository):
    """An empty patch is never handed out."""
    with pytest.raises(DrafterError, match="changed nothing and asked nothing\nI gave up"):
        await draft(bench.shell("echo I gave up >&2", repository=repository))


async def test_a_patch_that_is_too_large_is_a_failure(bench, repository):
    """It fits neither a comment nor a reviewer."""
    script = "head -c 9000000 /dev/urandom > big"
    with pytest.raises(DrafterError, match=r"larger than 5 MiB|more than is kept"):
        await draft(bench.shell(script, repository=repository))


async def test_a_patch_may_be_offered_where_nothing_changed(bench, repository):
    """It must apply to the base all the same."""
    script = "import json, sys; print(json.dumps({'patch': sys.argv[1]}))"
    patch = "--- a/README\n+++ b/README\n@@ -1 +1 @@\n-Hello\n+Bye\n"
    made = await draft(bench.python(script, patch, repository=repository))

    assert made.patch == patch
    other = patch.replace("Hello", "Nonsense")
    with pytest.raises(DrafterError, match=r"git apply failed: .*patch does not apply"):
        await draft(bench.python(script, other, repository=repository))


@pytest.mark.parametrize(
    "path", ["../evil", "/abs", ".git/hooks/pre-commit", "a/../../evil", "link/x"]
)
async def test_an_offered_patch_can_t_leave_the_tree(bench, repository, tmp_path, path):
    """git refuses it, by name or through a link, and nothing is written."""
    (repository / "link").symlink_to(tmp_path)
    commit(repository)
    patch = f"--- /dev/null\n+++ b/{path}\n@@ -0,0 +1 @@\n+x\n"
    script = "import json, sys; print(json.dumps({'patch': sys.argv[1]}))"

    with pytest.raises(DrafterError, match="git apply failed"):
        await draft(bench.python(script, patch, repository=repository))


# --- what a drafter is given -----------------------------------------------------------------


async def test_a_drafter_starts_from_the_newest_base(bench, repository):
    """Every claim fetches: the second drafter sees what was pushed after the first."""
    git(repository, "branch", "feature")
    await draft(bench.shell("echo x > new", repository=repository))
    git(repository, "branch", "--move", "feature", "feature/login")
    commit(repository, pushed="later\n")

    made = await draft(bench.shell("cat pushed > copy", repository=repository))

    assert "+later" in made.patch


@pytest.mark.parametrize("ref", ["release", "v1", "commit"])
async def test_a_draft_may_start_from_a_branch_a_tag_or_a_commit(bench, repository, ref):
    """Whatever git calls a commit."""
    first = git(repository, "rev-parse", "HEAD")
    git(repository, "branch", "release")
    git(repository, "tag", "--annotate", "--message", "One", "v1")
    commit(repository, README="Newer\n")
    base_ref = first if ref == "commit" else ref

    made = await draft(bench.shell("cat README > copy", repository=repository, base_ref=base_ref))

    assert "+Hello" in made.patch
    assert made.meta == {"base_commit": first}


async def test_history_and_tags_are_there_to_look_at(bench, repository):
    """Versions that are made from tags can be made, and the log can be read."""
    git(repository, "tag", "v1")
    commit(repository, README="Newer\n")
    script = "git describe --tags > version; git log --oneline origin/main | wc -l >> version"
    made = await draft(bench.shell(script, repository=repository))

    assert "+v1-1-g" in made.patch
    assert "+2" in made.patch


@pytest.mark.parametrize(
    ("base_ref", "reason"),
    [("nope", "the repository has no branch, tag or commit 'nope'"), ("-x", "not a repository")],
)
async def test_a_base_that_is_not_there_is_named(bench, repository, base_ref, reason):
    """The person who set it sees what is wrong."""
    with pytest.raises(DrafterError, match=reason):
        await draft(bench.shell("true", repository=repository, base_ref=base_ref))


async def test_an_empty_repository_is_a_failure_with_a_reason(bench, tmp_path):
    """There is nothing to start from."""
    git(tmp_path, "init", "--quiet", "--bare", tmp_path / "empty.git")

    with pytest.raises(DrafterError, match=r"git fetch failed: .*remote ref HEAD"):
        await draft(bench.shell("true", repository=tmp_path / "empty.git"))


async def test_two_drafters_may_need_the_same_new_mirror_at_once(bench, repository):
    """One fetches, the other waits."""
    drafters = [bench.shell(f"echo {n} > new", repository=repository) for n in range(3)]

    made = await asyncio.gather(*(draft(drafter) for drafter in drafters))

    assert ["+0" in made[0].patch, "+1" in made[1].patch, "+2" in made[2].patch] == [True] * 3


# --- what can't run code or leave traces -----------------------------------------------------


async def test_nothing_that_a_drafter_leaves_is_run(bench, repository, tmp_path):
    """Hooks, filters, diff programs, monitors: set up in the worktree, they stay there."""
    trace = tmp_path / "ran"
    script = f"""
evil='touch {trace}; cat'
git config core.fsmonitor "$evil"; git config core.hooksPath hooks
git config filter.evil.clean "$evil"; git config filter.evil.smudge "$evil"
git config filter.evil.process "$evil"; git config filter.evil.required true
git config diff.evil.command "$evil"; git config diff.evil.textconv "$evil"
git config diff.external "$evil"; git config core.attributesFile attributes
git config core.alternateRefsCommand "$evil"; git config gc.recentObjectsHook "$evil"
mkdir -p hooks .git/hooks
for hook in post-index-change reference-transaction post-checkout pre-commit; do
    printf '#!/bin/sh\\n%s' "$evil" | tee hooks/$hook > .git/hooks/$hook
    chmod +x hooks/$hook .git/hooks/$hook
done
echo '* filter=evil diff=evil' | tee .gitattributes > attributes
rm {trace} 2>/dev/null; echo changed > README; true
"""
    made = await draft(bench.shell(script, repository=repository))

    assert "+changed" in made.patch
    assert not trace.exists()


async def test_nothing_that_a_drafter_puts_into_the_mirror_is_run(bench, repository, tmp_path):
    """It can reach it without a sandbox; the next fetch runs no hook of it."""
    trace = tmp_path / "ran"
    script = f"""
echo x > new
cd ../../../mirrors/*.git && mkdir hooks
for hook in reference-transaction post-checkout pre-auto-gc; do
    printf '#!/bin/sh\\ntouch {trace}' > hooks/$hook
    chmod +x hooks/$hook
done
"""
    await draft(bench.shell(script, repository=repository))
    commit(repository, pushed="later\n")

    await draft(bench.shell("echo x > new", repository=repository))

    assert not trace.exists()


async def test_nothing_that_the_repository_holds_is_run(bench, repository, tmp_path):
    """Its hooks and filters are not those of the service that fetches it."""
    trace = tmp_path / "ran"
    hooks = repository / ".git" / "hooks"
    hooks.mkdir(exist_ok=True)
    for hook in ("post-checkout", "reference-transaction", "pre-auto-gc"):
        (hooks / hook).write_text(f"#!/bin/sh\ntouch {trace}\n")
        (hooks / hook).chmod(0o755)
    git(repository, "config", "uploadpack.packObjectsHook", f"touch {trace};")
    commit(repository, __gitattributes="* filter=evil\n")
    trace.unlink(missing_ok=True)

    await draft(bench.shell("echo x > new", repository=repository))

    assert not trace.exists()


@pytest.mark.parametrize(
    "script",
    [
        "rm -rf .git",
        "rm -rf .git; echo 'gitdir: /nowhere' > .git",
        "rm -rf .git; ln -s /nowhere .git",
        "echo '[core' > .git/config",
        "rm .git/index; : > .git/HEAD",
        "touch .git/index.lock",
        "git rm -rq --cached .",
    ],
)
async def test_a_worktree_without_its_repository_still_gives_its_patch(bench, repository, script):
    """The patch is made from the files alone."""
    made = await draft(bench.shell(f"{script}; echo x > new", repository=repository))

    assert made.patch.count("diff --git") == 1


@pytest.mark.parametrize("script", ["ln -s /etc ../work", "true"])
async def test_a_worktree_that_is_gone_is_a_failure(bench, repository, script):
    """A link in its place is not followed."""
    with pytest.raises(DrafterError, match="replaced its worktree"):
        await draft(bench.shell(f"rm -rf ../work; {script}", repository=repository))


async def test_what_a_drafter_commits_stays_out_of_the_mirror(bench, repository):
    """No branch, no config and no remote is shared between claims."""
    script = (
        "git remote | wc -l > remotes; git checkout -qb mine; git add .; git commit -qm Mine;"
        " git push -q origin mine 2> push; echo $? > code; git config a.b c"
    )
    made = await draft(bench.shell(script, repository=repository))

    (mirror,) = (bench.state_dir / "mirrors").glob("*.git")
    assert git(mirror, "for-each-ref", "--format=%(refname)") == (
        "refs/heads/main\nrefs/source/HEAD"
    )
    assert "a.b" not in git(mirror, "config", "--list")
    assert "+0" in made.patch
    assert "+128" in made.patch


@pytest.mark.parametrize(
    "url",
    [
        "--upload-pack=touch {trace}; git-upload-pack",
        "ext::sh -c touch% {trace}",
        "ssh://-oProxyCommand=touch {trace}/x",
        "",
        "a\nb",
    ],
)
async def test_a_repository_s_name_can_t_be_an_option_or_a_command(bench, tmp_path, url):
    """What is not a path or a plain URL is refused, and nothing is run."""
    trace = tmp_path / "ran"

    with pytest.raises(DrafterError):
        await draft(bench.shell("true", repository=url.format(trace=trace)))

    assert not trace.exists()


async def test_a_remote_is_reached_by_https_ssh_or_a_path(bench):
    """Of all that git speaks, what is not authenticated and what runs commands is refused."""
    with pytest.raises(DrafterError, match="transport 'git' not allowed"):
        await draft(bench.shell("true", repository="git://127.0.0.1:1/x"))


async def test_a_remote_that_asks_for_a_password_fails_at_once(bench):
    """Nobody is there to answer; and the password in the URL is in no message."""

    async def refuse(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(
            b"HTTP/1.1 401 Unauthorized\r\nWWW-Authenticate: Basic realm=x\r\n"
            b"Content-Length: 0\r\nConnection: close\r\n\r\n"
        )
        writer.close()

    async with await asyncio.start_server(refuse, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(DrafterError, match="git fetch failed") as failed:
            await draft(bench.shell("true", repository=f"http://ada:hunter2@127.0.0.1:{port}/x"))

    assert "hunter2" not in str(failed.value)


async def test_a_remote_that_never_answers_is_given_up(bench, tmp_path):
    """A git command has a limit of time as a drafter has one."""
    runner = Git(environment=git_environment(os.environ), timeout_seconds=0.5)

    async def listen(reader, writer):
        await reader.read()
        writer.close()

    async with await asyncio.start_server(listen, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        slow = replace(source(f"http://127.0.0.1:{port}/x", bench.state_dir), git=runner)
        async with workplace(bench.state_dir, "slow") as place:
            with pytest.raises(DrafterError, match=r"git fetch took longer than 0\.5 s"):
                await slow.check_out(place)


# --- what is left behind ---------------------------------------------------------------------


@pytest.mark.parametrize("script", ["echo x > new", "exit 1", "kill -9 $$", "kill -9 0"])
async def test_nothing_is_left_of_a_run(bench, repository, script):
    """The worktree goes with the run, however it ended."""
    with suppress(DrafterError):
        await draft(bench.shell(script, repository=repository))

    assert bench.left_over() == []


async def test_directories_that_nobody_may_write_to_are_removed(bench):
    """Some tools protect their caches; a link among them is not followed."""
    async with workplace(bench.state_dir, "a") as place:
        cache = place.work / "cache" / "inner"
        cache.mkdir(parents=True)
        (cache / "file").write_text("x")
        (cache / "link").symlink_to("/usr")
        cache.chmod(0o500)
        cache.parent.chmod(0o000)

    assert bench.left_over() == []


async def test_git_s_own_stale_locks_are_removed(bench, repository):
    """Whoever holds the mirror's lock is alone: a lock file in it is a dead process's."""
    await draft(bench.shell("echo x > new", repository=repository))
    (mirror,) = (bench.state_dir / "mirrors").glob("*.git")
    for name in ("packed-refs.lock", "config.lock", "refs/heads/main.lock", "HEAD.lock"):
        (mirror / name).touch()
    commit(repository, pushed="later\n")

    made = await draft(bench.shell("cat pushed > copy", repository=repository))

    assert "+later" in made.patch


async def test_the_next_run_sweeps_up_after_a_killed_worker(bench, repository, tmp_path):
    """SIGKILL leaves a worktree, and the next run on the machine removes it; not those in use."""
    async with pulse(tmp_path) as seen, workplace(bench.state_dir, "in-use") as other:
        worker = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", WORKER, repository, bench.state_dir, seen.path),
            cwd=Path(__file__).parent.parent,
        )
        assert await seen.said() == "drafting"
        (killed,) = {*bench.left_over()} - {other.home.name}
        worker.kill()
        await worker.wait()
        await seen.stopped()
        await until(lambda: is_free(bench.state_dir / "worktrees" / killed / "lock"))

        await draft(bench.shell("echo x > new", repository=repository))

        assert bench.left_over() == [other.home.name]


async def test_a_place_that_was_tampered_with_stops_nobody(bench):
    """A lock that is no file is left where it is."""
    for name, kind in (("a", Path.mkdir), ("b", lambda lock: lock.symlink_to("/etc/passwd"))):
        (bench.state_dir / "worktrees" / name).mkdir(parents=True)
        kind(bench.state_dir / "worktrees" / name / "lock")

    async with workplace(bench.state_dir, "new") as place:
        assert place.work.is_dir()


async def test_a_state_directory_that_can_t_be_used_is_a_failure(bench, tmp_path):
    """A full or foreign disk is said, and the worker lives on."""
    (tmp_path / "file").write_text("")

    with pytest.raises(DrafterError, match=r"the state directory can't be used: .*Not a directory"):
        await draft(bench.shell("true", state_dir=tmp_path / "file" / "state"))


async def test_a_mirror_that_was_deleted_is_made_again(bench, repository):
    """The state directory is a cache."""
    await draft(bench.shell("echo x > new", repository=repository))
    shutil.rmtree(bench.state_dir / "mirrors")

    assert (await draft(bench.shell("echo x > new", repository=repository))).patch


WORKER = """
import asyncio, sys
from pathlib import Path
from tests.drafters import CLAIM, STORY, Bench

repository, state_dir, pulse = sys.argv[1:]
drafter = Bench(Path(state_dir)).shell(
    f"exec 9> {pulse}; echo drafting >&9; sleep 300", repository=repository
)
asyncio.run(drafter.draft(CLAIM, STORY, conversation=(), previous_patch=None))
"""
