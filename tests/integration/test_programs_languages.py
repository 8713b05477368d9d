# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""Interpreters and virtual machines, under the preload and without: equal output and status."""

import re

import pytest

from conftest import recover, run, said
from programs import nothing_is_left, program, same

PYTHON = r"""
import collections, decimal, gc, hashlib, json, re, sqlite3, subprocess, sys, threading, zlib
table = {f"key {i}": [i, str(i) * 3, {"half": i / 2, "set": sorted({i % 7, i % 11})}] for i in
         range(60000)}
text = json.dumps(table)
again = json.loads(text)
print(len(text), again == table, hashlib.sha256(text.encode()).hexdigest())
print(sum(int(m[1]) for m in re.finditer(r'"key (\d+)": \[\1', text)),
      len(zlib.compress(text.encode(), 9)))
decimal.getcontext().prec = 2000
print(str(decimal.Decimal(2).sqrt())[-20:], (7 ** 40000).bit_length())
tree = None
for i in range(100000):
    tree = (i, tree)
depth = 0
while tree: depth, tree = depth + 1, tree[1]
print(depth, collections.Counter(text[:50000]).most_common(3))
db = sqlite3.connect(":memory:")
db.execute("create table t (k integer primary key, v text)")
db.executemany("insert into t values (?, ?)", ((i, str(i * i)) for i in range(30000)))
print(db.execute("select count(*), sum(v), max(length(v)) from t where v like '%9%'").fetchone())
words = [subprocess.run(["sh", "-c", f"echo {i}; exit {i}"], capture_output=True) for i in range(5)]
print([(w.stdout, w.returncode) for w in words])
print(subprocess.check_output(["tr", "a-z", "A-Z"], input=b"piped " * 20000)[-6:])
total, lock = 0, threading.Lock()
def work(n):
    global total
    mine = sum(len(bytes([j % 256]) * (j * 37 % 9000)) for j in range(3000))
    with lock: total += mine + n
threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
[t.start() for t in threads]; [t.join() for t in threads]
print(total, sys.getrefcount(None) > 0, gc.collect() >= 0)
sys.exit(3)
"""

# A module of its own, because spawn and forkserver import it again in the child.
PROCESSES = r"""
import multiprocessing, os, sys
from multiprocessing import shared_memory

table = {i: [str(i)] * 5 for i in range(20000)}

def work(n):
    grown = {**table, "n": n}
    return sum(len(v[0]) for k, v in grown.items() if k != "n") + n

def produce(queue, n):
    for i in range(300):
        queue.put((n, i, "x" * (i * 7)))
    queue.put(None)

def scribble(name):
    memory = shared_memory.SharedMemory(name)
    memory.buf[:5] = b"child"
    memory.close()

if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[1])
    with context.Pool(3) as pool:
        print(pool.map(work, range(20)))
    queue = context.Queue()
    makers = [context.Process(target=produce, args=(queue, n)) for n in range(2)]
    for maker in makers: maker.start()
    got, ends = [], 0
    while ends < 2:
        item = queue.get()
        ends += item is None
        if item: got.append((item[0], item[1], len(item[2])))
    for maker in makers: maker.join()
    print(sorted(got)[-1], len(got), [m.exitcode for m in makers])
    memory = shared_memory.SharedMemory(create=True, size=1 << 20)
    writer = context.Process(target=scribble, args=(memory.name,))
    writer.start(); writer.join()
    print(bytes(memory.buf[:5]), writer.exitcode)
    memory.close(); memory.unlink()
    table[0] = "parent's own"
    print(len(table), table[19999])
"""

PERL = r"""
use strict; use warnings; use List::Util qw(sum reduce); use Digest::MD5 qw(md5_hex);
use Storable qw(dclone);
my %h = map { ("key$_" => { n => $_, list => [1 .. $_ % 17] }) } 1 .. 40000;
my $copy = dclone(\%h);
print sum(map { scalar @{$_->{list}} } values %$copy), " ", md5_hex(join ",", sort keys %h), "\n";
my $text = join " ", map { sprintf "%x", $_ * 7919 } 1 .. 60000;
my $n = () = $text =~ /\b(\w)(\w)\2\1\b/g; print "$n ", length($text =~ s/(\d+)/<$1>/gr), "\n";
delete @h{grep { /7/ } keys %h}; print scalar(keys %h), "\n";
my @kids = map { my $i = $_; my $pid = open(my $from, "-|") // die;
                 if (!$pid) { print sum(map { $_->{n} } values %$copy) + $i, "\n"; exit $i }
                 $from } 1 .. 4;
for my $kid (@kids) { print <$kid>; close $kid; print $? >> 8, "\n" }
$| = 1; print `echo from the shell; exit 2`, $? >> 8, "\n"; my $s = "ab"; $s x= 1 << 22;
print length $s, "\n";
local $SIG{ALRM} = sub { print "alarm\n"; exit 6 }; select(undef, undef, undef, 0); alarm 1;
while (1) { push @kids, substr($text, rand 1000, 50); @kids = () if @kids > 1000 }
"""

NODE = r"""
const { Worker, isMainThread, parentPort, workerData } = require('worker_threads');
const crypto = require('crypto'), zlib = require('zlib'), fs = require('fs');
const cp = require('child_process');
if (!isMainThread) {
  const table = new Map();
  for (let i = 0; i < 50000; i++) table.set('k' + i, Buffer.alloc(i % 300, i % 256));
  let sum = workerData; for (const b of table.values()) sum += b.length;
  parentPort.postMessage({ sum, shared: new Int32Array(64).fill(sum % 1000) });
} else {
  const worker = n => new Promise((ok, no) =>
    new Worker(__filename, { workerData: n }).on('message', ok).on('error', no));
  (async () => {
    console.log((await Promise.all([1, 2, 3].map(worker))).map(m => [m.sum, m.shared[63]]));
    const some = Array.from({ length: 2000 }, (_, i) => Buffer.from(String(i).repeat(500)));
    const big = Buffer.concat(some), packed = zlib.gzipSync(big);
    const text = JSON.stringify(Array.from({ length: 50000 }, (_, i) => ({ i, s: 's' + i })));
    console.log(zlib.gunzipSync(packed).equals(big),
                crypto.createHash('sha256').update(big).digest('hex'));
    console.log(JSON.parse(text).length, text.match(/"s(\d+)9"/g).length,
                crypto.pbkdf2Sync('p', 's', 1000, 32, 'sha512').toString('hex'));
    console.log(cp.execFileSync('sh', ['-c', 'seq 1 5 | tr "\\n" " "']).toString(),
                cp.spawnSync('sh', ['-c', 'exit 3']).status);
    const child = cp.fork(__filename + '.child.js'); child.send({ n: 21 });
    console.log(await new Promise(ok => child.on('message', ok))); child.disconnect();
    await new Promise(ok => child.on('exit', ok));
    fs.writeFileSync('out.bin', big); console.log((await fs.promises.readFile('out.bin')).length);
    process.exitCode = 5;
  })();
}
"""
NODE_CHILD = (
    "process.on('message', m => process.send({ twice: m.n * 2, "
    "list: Array(5000).fill('x') .length }));\n"
)

JAVA = r"""
import java.nio.*; import java.nio.file.*; import java.util.*; import java.util.concurrent.*;
import java.util.stream.*; import java.util.zip.*;
public class Work {
    static native void nothing();
    public static void main(String[] args) throws Exception {
        Map<String, List<Integer>> map = new TreeMap<>();
        for (int i = 0; i < 200000; i++)
            map.computeIfAbsent("k" + i % 1000, k -> new ArrayList<>()).add(i);
        System.out.println(map.values().stream()
            .mapToLong(l -> l.stream().mapToLong(x -> x).sum()).sum());
        ExecutorService pool = Executors.newFixedThreadPool(6);
        List<Future<Long>> all = new ArrayList<>();
        for (int t = 0; t < 12; t++) { final int n = t; all.add(pool.submit(() -> {
            long sum = 0;
            for (int i = 0; i < 300; i++) {
                ByteBuffer b = ByteBuffer.allocateDirect(1000 + i * 64); b.putInt(0, i * n);
                sum += b.getInt(0) + b.capacity(); }
            CRC32 crc = new CRC32(); Deflater d = new Deflater(9); d.setInput(new byte[100000]);
            d.finish(); byte[] out = new byte[1000];
            crc.update(out, 0, d.deflate(out)); d.end(); return sum + crc.getValue(); })); }
        for (Future<Long> f : all) System.out.print(f.get() + " ");
        pool.shutdown(); System.gc();
        Process p = new ProcessBuilder("sh", "-c", "cat; exit 4").start();
        p.getOutputStream().write("through a child".getBytes()); p.getOutputStream().close();
        System.out.println(new String(p.getInputStream().readAllBytes()) + " " + p.waitFor());
        Files.writeString(Path.of("out.txt"), IntStream.range(0, 50000)
            .mapToObj(Integer::toString).collect(Collectors.joining(",")));
        byte[][] much = new byte[10000][];
        try { for (int i = 0; ; i++) much[i] = new byte[1 << 22]; }
        catch (OutOfMemoryError e) { System.out.println("out of memory"); }
        System.exit(6);
    }
}
"""

RUBY = r"""
h = (1..60000).to_h { |i| ["key#{i}", [i, i.to_s * 3, {half: i / 2.0}]] }
puts Marshal.load(Marshal.dump(h)) == h, h.values.sum { |v| v[1].size },
     h.keys.join.scan(/(\d)\1/).size
GC.start; GC.compact rescue nil
puts (1..4).map { |n| Thread.new { (1..20000).map { |i| "#{n}#{i}" }.join.sum } }
  .map(&:value).inspect
r, w = IO.pipe
pid = fork { r.close; h.delete("key1"); w.puts h.size; exit!(3) }
w.close; puts r.read; Process.wait pid;
puts $?.exitstatus, h.size, `echo shell`, (3 ** 5000).to_s.size
exit 2
"""

PHP = r"""
$h = [];
for ($i = 0; $i < 60000; $i++) $h["k$i"] = [$i, str_repeat("x", $i % 90), (object)["n" => $i]];
echo md5(serialize($h)), " ", count(unserialize(serialize($h))), "\n";
$j = json_encode($h);
echo strlen($j), " ", count(json_decode($j, true)), " ", preg_match_all('/k(\d)\1/', $j), "\n";
usort($h, fn($a, $b) => strlen($b[1]) <=> strlen($a[1]) ?: $a[0] <=> $b[0]); echo $h[5][0], "\n";
function g() { for ($i = 0; $i < 1000; $i++) yield str_repeat((string)$i, 100); } $n = 0;
foreach (g() as $s) $n += strlen($s); echo "$n\n";
echo shell_exec("echo shell"), strlen(gzcompress($j, 9)) > 0, " ",
     (new PDO('sqlite::memory:') ?? 0) ? "pdo" : "", "\n"; exit(4);
"""

LUA = r"""
local t = {} for i = 1, 200000 do t[i] = {i, tostring(i)} end
local parts = {} for i = 1, #t, 7 do parts[#parts + 1] = t[i][2]:rep(2) end
local s = table.concat(parts, ",") print(#s, select(2, s:gsub("(%d)%1", "<%1>")))
t = nil collectgarbage() print(collectgarbage("count") < 20000)
local co = coroutine.wrap(function() for i = 1, 1000 do coroutine.yield(("x"):rep(i * 10)) end end)
local n = 0 for i = 1, 1000 do n = n + #co() end print(n)
print(io.popen("echo shell"):read("a")) os.exit(3)
"""

TCL = r"""
for {set i 0} {$i < 60000} {incr i} {dict set d key$i [list $i [string repeat x [expr {$i % 50}]]]}
puts "[dict size $d] [string length $d] [llength [regexp -all -inline {(\d)\1} $d]]"
puts [exec -ignorestderr sh -c {echo shell; cat} << "piped [string repeat y 100000]" | wc -c]
puts [string length [expr {7 ** 20000}]]; puts [lindex [lsort -decreasing [dict keys $d key1*]] 0];
exit 3
"""

GUILE = r"""
(use-modules (srfi srfi-1) (ice-9 regex) (ice-9 threads) (ice-9 popen) (rnrs bytevectors))
(define h (make-hash-table))
(do ((i 0 (1+ i))) ((= i 100000)) (hash-set! h i (number->string (* i i))))
(display (hash-fold (lambda (k v sum) (+ sum (string-length v))) 0 h)) (newline)
(display (apply + (map bytevector-length (map (lambda (i) (make-bytevector (* i 10) 1))
                                         (iota 2000))))) (newline)
(gc) (display (par-map (lambda (n) (length (list-tabulate (* n 5000) number->string)))
                       '(1 2 3 4))) (newline)
(display (string-length (number->string (expt 3 20000)))) (newline) (system "echo shell") (exit 3)
"""

GDB = (
    "set pagination off",
    "set confirm off",
    "set print inferior-events off",
    "catch syscall exit_group",
    "run",
    "print $_siginfo.si_signo",
    "print 6*7",
    "python print(sum(range(100000)), sorted(str(i) for i in range(3000))[-1])",
    "kill",
)


def test_python(tmp_path):
    same(tmp_path, [program("python3"), "-c", PYTHON], status=3)


@pytest.mark.parametrize("method", ("fork", "spawn", "forkserver"))
def test_python_processes(tmp_path, method):
    def prepare(folder):
        (folder / "work.py").write_text(PROCESSES)

    done = same(tmp_path, [program("python3"), "-B", "work.py", method], prepare=prepare)
    assert "b'child' 0" in done.out


def test_python_calls_malloc(tmp_path):
    """Python looks malloc up by name in the running process."""
    script = "import ctypes; l = ctypes.CDLL(None); l.malloc.restype = ctypes.c_void_p\n"
    script += (
        "l.free.argtypes = [ctypes.c_void_p]; a = [l.malloc(i * 31) for i in range(1, 3000)]\n"
    )
    script += "[l.free(p) for p in a]; print(len(set(a)), all(p % 16 == 0 for p in a))"
    done = same(tmp_path, [program("python3"), "-c", script])
    assert done.out == "2999 True\n"


def test_perl(tmp_path):
    done = same(tmp_path, [program("perl"), "-e", PERL], status=6)
    assert done.out.endswith("alarm\n")


def test_node(tmp_path):
    def prepare(folder):
        (folder / "work.js").write_text(NODE)
        (folder / "work.js.child.js").write_text(NODE_CHILD)

    same(tmp_path, [program("node", "nodejs"), "work.js"], status=5, prepare=prepare)


@pytest.mark.parametrize("collector", ("Serial", "G1"))
def test_java(tmp_path, collector):
    """The source launcher needs javac's modules, which are in Debian's run-time image."""

    def prepare(folder):
        (folder / "Work.java").write_text(JAVA)

    argv = [program("java"), "-Xmx64m", "-XX:-UsePerfData", f"-XX:+Use{collector}GC", "Work.java"]
    same(tmp_path, argv, status=6, prepare=prepare)


def test_ruby(tmp_path):
    same(tmp_path, [program("ruby"), "-e", RUBY], status=2)


def test_php(tmp_path):
    """PHP loads its modules with RTLD_DEEPBIND, so libc's malloc comes first in them."""
    done = same(
        tmp_path,
        [program("php"), "-n", "-r", PHP.replace("new PDO('sqlite::memory:')", "1")],
        status=4,
    )
    assert "shell" in done.out
    (tmp_path / "modules").mkdir()
    modules = same(
        tmp_path / "modules",
        [program("php"), "-r", 'echo count(get_loaded_extensions()) > 20, class_exists("PDO");'],
    )
    assert modules.out == "11"


@pytest.mark.check
def test_lua(tmp_path):
    same(tmp_path, [program("lua5.4"), "-e", LUA], status=3)


def test_tcl(tmp_path):
    same(tmp_path, [program("tclsh")], stdin=TCL, status=3)


def test_guile(tmp_path):
    same(tmp_path, [program("guile"), "--no-auto-compile", "-c", GUILE], status=3)


def test_gdb(tmp_path):
    """gdb and the program that it debugs both run under the preload."""
    argv = [
        program("gdb"),
        "-nx",
        "-batch",
        *(f"-ex={command}" for command in GDB),
        "--args",
        "/bin/true",
    ]
    done = same(tmp_path, argv, meaning=lambda text: re.sub(r"0x[0-9a-f]+", "ADDRESS", text))
    assert "call to syscall exit_group" in done.out and "4999950000 999" in done.out


KEEPING = {
    "perl": ("-e", '%h = map { $_ => "v$_" x 3 } 1 .. 50000; print scalar(keys %h), `echo child`'),
    "python3": (
        "-c",
        "print(len({i: str(i) * 3 for i in range(100000)}), [str(i) for i in range(9)])",
    ),
    "sqlite3": (
        ":memory:",
        "create table t (x); with recursive c(i) as (select 1 union all select i + 1 from c "
        "where i < 50000) insert into t select hex(i) from c; select count(*), max(x) from t",
    ),
    "lua5.4": ("-e", "local t = {} for i = 1, 50000 do t[i] = {tostring(i)} end print(#t)"),
}


@pytest.mark.parametrize("name", KEEPING)
def test_on_a_heap_that_keeps_everything(heap, name):
    """All data of the program are roots. The next run recovers what one run left, and works as
    before."""
    argv = [program(name), *KEEPING[name]]
    plain = run(argv, preload=False)
    for before in ("new", "clean", "clean"):
        done = run(argv, HEAP=heap, ROOTS="*", VERBOSE=1, PROGRAM=argv[0].resolve().name)
        assert (done.returncode, done.stdout) == (0, plain.stdout), said(done)
        assert f"roots: 1 (*); {before}" in done.stderr, said(done)
    assert recover(heap, "--check").returncode == 0
