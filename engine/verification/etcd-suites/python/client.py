"""python-etcd3, as its users call it, on a member of its own: `make etcd-python`.

Usage: client.py PROGRAM, that of `dengine`. Ends with an assertion at the first difference.
"""

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
import threading

import etcd3

# How long a member may take to start on a busy machine, in seconds.
PATIENCE = 30


def free_ports(count):
    """Ports that nobody listens on, for as long as nobody else takes them."""
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [it.getsockname()[1] for it in sockets]


@contextlib.contextmanager
def member(program):
    """A cluster of one, and the port where it serves clients of etcd."""
    client, peer, monitor, admin, etcd = free_ports(5)
    with tempfile.TemporaryDirectory() as folder:
        flags = ["--name", "m1", "--data-dir", os.path.join(folder, "m1")]
        ports = {"client": client, "peer": peer, "monitor": monitor, "admin": admin, "etcd": etcd}
        for name, port in ports.items():
            flags += [f"--listen-{name}", f"127.0.0.1:{port}"]
        for name in ("client", "peer"):
            flags += [f"--advertise-{name}", f"127.0.0.1:{ports[name]}"]
        process = subprocess.Popen([program, "serve", *flags], stderr=subprocess.DEVNULL)
        try:
            init = [program, "init", "--endpoints", f"127.0.0.1:{client}", "--timeout", f"{PATIENCE}s"]
            subprocess.run(init, check=True, stdout=subprocess.DEVNULL)
            yield etcd
        finally:
            process.terminate()
            try:
                process.wait(PATIENCE)
            finally:
                process.kill()


def keys(client):
    client.put("a/1", "one")
    client.put("a/2", "two")
    assert client.get("a/1")[0] == b"one"
    assert [value for value, _ in client.get_prefix("a/")] == [b"one", b"two"]
    backwards = client.get_prefix("a/", sort_order="descend", sort_target="key")
    assert [it.key for _, it in backwards] == [b"a/2", b"a/1"]
    assert client.replace("a/1", "one", "uno")
    assert not client.replace("a/1", "one", "eins")
    assert client.put_if_not_exists("b", "x")
    assert not client.put_if_not_exists("b", "y")
    assert client.delete_prefix("a/").deleted == 2


def transactions(client):
    is_there = client.transactions.version("b") > 0
    is_x = client.transactions.value("b") == "x"
    yes, no = (client.transactions.put("t", it) for it in ("yes", "no"))
    succeeded, results = client.transaction([is_there, is_x], [yes, client.transactions.get("b")], [no])
    assert succeeded and results[1][0][0] == b"x", results
    assert client.get("t")[0] == b"yes"


def leases(client):
    lease = client.lease(5)
    client.put("l", "v", lease=lease)
    assert 0 < lease.remaining_ttl <= 5 and lease.keys == [b"l"]
    assert lease.refresh()[0].TTL == 5
    lease.revoke()
    assert client.get("l")[0] is None


def watches(client):
    events, cancel = client.watch_prefix("w/")

    def write():
        for number in range(5):
            client.put(f"w/{number}", str(number))
        client.delete("w/0")

    threading.Thread(target=write).start()
    seen = [type(next(events)).__name__ for _ in range(6)]
    cancel()
    assert seen == ["PutEvent"] * 5 + ["DeleteEvent"], seen


def locks(client):
    first, second = (client.lock("mutex", ttl=10) for _ in range(2))
    assert first.acquire(timeout=5) and first.is_acquired()
    assert not second.acquire(timeout=1)
    assert first.release()
    assert second.acquire(timeout=5)
    assert second.release()


def upkeep(client):
    assert client.status().version == "3.6.0"
    assert [it.name for it in client.members] == ["m1"]
    client.compact(2)
    assert list(client.list_alarms()) == []
    client.defragment()


def main():
    with member(sys.argv[1]) as port:
        for part in (keys, transactions, leases, watches, locks, upkeep):
            part(etcd3.client("127.0.0.1", port, timeout=10))
            print(f"{part.__name__}: as users expect")


main()
