# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""Shells and the programs that they call, under the preload and without: equal output, status and
files."""

import pytest

from programs import bash, nothing_is_left, program, same

SHELL = r"""
set -u
numbers=(); for i in {1..2000}; do numbers+=("n$i"); done
echo "${#numbers[@]} ${numbers[*]:1990:5}"
declare -A square; for i in {1..500}; do square[$i]=$((i * i)); done
echo "${square[77]} ${#square[@]}"
(cd /; x=inner; echo "$x $PWD"; exit 3); echo "status $?"
seq 1 20000 | sort -rn | grep 7 | sed 's/7/seven/' | tail -n 3 | tee tail.txt
echo "$(echo "$(echo "$(seq -s+ 1 100)" | tr + ' ')" | wc -w)"
cat > here.txt <<END
$((6 * 7)) $(printf '%05d' 42)
END
cat here.txt <<<"a here-string"
diff <(seq 1 10) <(seq 2 11) && echo equal
trap 'echo "caught USR1"' USR1; kill -USR1 $$
false | true | (exit 5); echo "${PIPESTATUS[@]}"
for i in 1 2 3 4; do (seq 1 5000 | md5sum > "sum$i") & done; wait; cat sum?
f() { local depth=$1; ((depth == 0)) && return 0; echo -n "$depth "; f $((depth - 1)); }; f 40; echo
while read -r line; do text+=$line; done < <(seq 1 3000); echo "${#text}"
[[ "2026-01-02" =~ ^([0-9]+)-([0-9]+) ]] && echo "${BASH_REMATCH[2]}"
coproc tr a-z A-Z; exec {answers}<&"${COPROC[0]}"
echo coprocess >&"${COPROC[1]}"; eval "exec ${COPROC[1]}>&-"; cat <&"$answers"
trap 'echo "exit trap $?"' EXIT
exit 4
"""

POSIX = r"""
list=; i=0
while [ $i -lt 500 ]; do list="$list $i"; i=$((i + 1)); done
set -- $list; echo $# ; shift 490; echo "$@"
count() { echo "$(for a; do echo "$a"; done | wc -l)"; }
count $list
(echo sub; exit 9) || echo "status $?"
cat <<END | sort | uniq -c
$(for a in b a c a b a; do echo $a; done)
END
(seq 1 1000 > a) & (seq 1 1000 > b) & wait; cmp a b && echo equal
trap 'echo leaving' EXIT
sh -c 'exec sh -c "exec echo executed"'
(trap 'echo terminated; exit 7' TERM; kill -TERM $(sh -c 'echo $PPID'); sleep 5); echo "status $?"
"""


def test_bash(tmp_path):
    done = same(tmp_path, [program("bash"), "-c", SHELL], status=4, on="bash")
    assert "caught USR1" in done.out and done.out.endswith("exit trap 4\n")


@pytest.mark.parametrize("shell", ("dash", "zsh", "busybox"))
def test_other_shells(tmp_path, shell):
    argv = [program(shell), *(["sh"] if shell == "busybox" else []), "-c", POSIX]
    if shell == "zsh":
        argv[1:1] = ["--emulate", "sh", "-f"]
    done = same(tmp_path, argv, on=shell)
    assert "executed" in done.out and "status 7" in done.out


def test_shells_on_one_heap(tmp_path, heap):
    """The first shell has the named heap. Everything that it starts runs on volatile memory."""
    done = same(tmp_path, [program("bash"), "-c", SHELL], status=4, on="heap", HEAP=heap)
    assert done.heaps.count("heap") == 1 and done.heaps.count("volatile") > 20


def test_only_the_program_that_is_meant(tmp_path, heap):
    script = "for i in 1 2 3; do seq 1 30000 | sort -rn | head -n 2; done"
    done = same(
        tmp_path, [program("bash"), "-c", script], on="heap", HEAP=heap, PROGRAM="sort", BUSY="wait"
    )
    assert done.heaps.count("heap") == 3 and set(done.heaps) == {"heap", "volatile"}


def numbers(folder):
    """Writes lines in an order without a pattern, the same every time."""
    value = 1
    with open(folder / "numbers", "w", encoding="ascii") as file:
        for _ in range(50000):
            value = value * 1103515245 + 12345 & 0x7FFFFFFF
            file.write(f"{value % 100000} {value:x} word{value % 997}\n")


@pytest.mark.parametrize(
    "script, on",
    (
        (
            "sort -S 4M -T . --parallel=2 numbers | md5sum; sort -k3,3 -k1,1n -u -S 64M numbers | "
            "tail -n 2",
            "sort",
        ),
        (
            "sort -o sorted numbers; sort -c sorted && join sorted sorted | comm - sorted | md5sum",
            "join",
        ),
        ("mawk '{n[$3] += $1} END {for (k in n) print k, n[k]}' numbers | sort | md5sum", "mawk"),
        (
            "gawk '{n[$3] = n[$3] $2} "
            "END {asorti(n, i); for (k in i) print i[k], length(n[i[k]])}' numbers",
            "gawk",
        ),
        ("sed -E 's/([0-9a-f]+) word(.*)$/\\2:\\1/; /99/d; $!N; P; D' numbers | md5sum", "sed"),
        (
            "mkdir d; split -l 1000 numbers d/; grep -rnE '(12|34)+.*word(7|99)' d | sort | md5sum",
            "grep",
        ),
        (
            "mkdir -p d/e/f; split -l 3000 numbers d/e/f/x; find d -type f -size +40k -exec wc -l "
            "{} + | tail -n 1",
            "find",
        ),
        (
            "mkdir d; split -l 3000 numbers d/; find d -type f | xargs -P 2 -n 3 md5sum | sort | "
            "md5sum",
            "xargs",
        ),
        ("tac numbers | cut -d' ' -f2 | uniq | paste - - - | fold -w 20 | pr -t -2 | cksum", "pr"),
        (
            "head -n 5000 numbers | sort -n | diff <(head -n 5000 numbers) - | wc -l; "
            "diff -y <(seq 1 999) <(seq 1 3 999) | md5sum",
            "diff",
        ),
        (
            "factor $(seq 1000000007 1000000057); seq 5000 | shuf --random-source=numbers | md5sum",
            "factor",
        ),
        ("echo 'scale=400; 4*a(1)' | bc -l; echo '2^4000 % 10^20' | bc", "bc"),
        (
            "printf '%s\\n' '1,$s/word/W/' 1000,49000d 'g/W99/m0' w q | ed -s numbers; "
            "head -n 900 numbers | md5sum",
            "ed",
        ),
        (
            "vim.tiny -n -u NONE -i NONE -es -c '%s/word/W/' -c 'g/^1/d' -c 'sort' -c wq numbers; "
            "md5sum numbers",
            "vim.tiny",
        ),
        (
            "cp numbers x; file x; rsync -a --inplace --checksum x y; echo more >>x; rsync -a x y; "
            "cmp x y",
            "rsync",
        ),
        ("curl -s file://$PWD/numbers | md5sum; curl -s file:///missing; echo $?", "curl"),
        (
            "ps -o comm= -p $$; env | grep -c LC_ALL; date -d @0; stat -c %s numbers; "
            "du -b numbers; dd if=numbers bs=7 2>&- | wc -c",
            "date",
        ),
    ),
    ids=lambda value: value if " " not in value else "",
)
def test_text_tools(tmp_path, script, on):
    bash(tmp_path, script, prepare=numbers, on=on)


@pytest.mark.parametrize(
    "script, on",
    (
        (
            "tar -czf a.tgz --mtime=@0 numbers; tar -xzOf a.tgz | md5sum; gzip -9c numbers | "
            "gzip -dc | cmp - numbers",
            "tar",
        ),
        (
            "bzip2 -k numbers; bzip2 -t numbers.bz2 && bunzip2 -c numbers.bz2 | cmp - numbers",
            "bzip2",
        ),
        (
            "xz -k -2 -T2 --block-size=1MiB numbers; xz -t numbers.xz; xz -dc -T2 numbers.xz | "
            "cmp - numbers",
            "xz",
        ),
        (
            "zstd -q -9 -T2 -B1M numbers; zstd -qt numbers.zst; zstd -dc numbers.zst | "
            "cmp - numbers",
            "zstd",
        ),
        ("xz -9e -k numbers; xz -lv numbers.xz | grep -c CRC64; unxz -c numbers.xz | md5sum", "xz"),
        (
            "head -n 9000 numbers >n; zstd -q --ultra -22 --long=27 n; zstd -dc --long=27 n.zst | "
            "cmp - n; "
            "zstd -q --train -o dictionary -B4K numbers && wc -c <dictionary",
            "zstd",
        ),
    ),
    ids=("tar-gzip", "bzip2", "xz-threads", "zstd-threads", "xz-9e", "zstd-22"),
)
def test_packers(tmp_path, script, on):
    # gzip writes the time into its header.
    bash(tmp_path, script, prepare=numbers, on=on, ignore=r"\.tgz$")


def documents(folder):
    parts = [f'{{"id": {i}, "name": "item {i}", "tags": ["a{i % 7}", "b"]}}' for i in range(20000)]
    (folder / "all.json").write_text("[" + ",\n".join(parts) + "]")
    parts = [f'<item id="i{i}"><name>n {i % 100}</name></item>' for i in range(20000)]
    (folder / "all.xml").write_text("<all>" + "\n".join(parts) + "</all>")


@pytest.mark.parametrize(
    "script, on",
    (
        (
            "jq -c 'group_by(.tags[0]) | map({(.[0].tags[0]): (map(.id) | add)}) | add' all.json; "
            "jq . all.json | md5sum",
            "jq",
        ),
        (
            "xmllint --format all.xml | md5sum; xmllint --xpath 'count(//item[name=\"n 7\"])' "
            "all.xml",
            "xmllint",
        ),
    ),
    ids=("jq", "xmllint"),
)
def test_documents(tmp_path, script, on):
    bash(tmp_path, script, prepare=documents, on=on)
