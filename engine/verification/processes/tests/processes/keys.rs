//! `dengine put`, `get` and their like, as a person runs them.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpListener;
use std::process::{Output, Stdio};

use serde_json::Value;

use crate::harness::{Cluster, dengine, scratch};

fn run(cluster: &Cluster, args: &[&str]) -> Output {
    let mut command = dengine();
    command.args(args);
    command.args(["--endpoints", &cluster.endpoints().join(",")]);
    command.output().unwrap()
}

fn told(output: &Output) -> (String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (text(&output.stdout), text(&output.stderr))
}

/// Runs it, expects it to succeed, and returns what it said.
fn done(cluster: &Cluster, args: &[&str]) -> String {
    let output = run(cluster, args);
    let (out, err) = told(&output);
    assert!(output.status.success(), "{args:?}: {out}{err}");
    out
}

const FAILED: i32 = 1;
/// The command line is wrong.
const USAGE: i32 = 2;
/// There is no such key, or a condition did not hold.
const UNMET: i32 = 5;

/// Expects it to end with this code and with this in what it complains of.
fn ends(cluster: &Cluster, args: &[&str], code: i32, part: &str) {
    let output = run(cluster, args);
    let (out, err) = told(&output);
    assert_eq!(output.status.code(), Some(code), "{args:?}: {out}{err}");
    assert!(err.contains(part), "{args:?}: {out}{err}");
}

/// The same with something on standard input.
fn fed(cluster: &Cluster, args: &[&str], input: &[u8]) -> String {
    let mut child = dengine()
        .args(args)
        .args(["--endpoints", &cluster.endpoints().join(",")])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(input).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{args:?}");
    told(&output).0
}

fn json(line: &str) -> Value {
    serde_json::from_str(line).unwrap()
}

#[tokio::test]
async fn what_is_put_is_got() {
    let cluster = Cluster::form(1).await;
    let put = done(&cluster, &["put", "color", "blue"]);
    assert!(put.starts_with("revision "), "{put}");
    assert_eq!(done(&cluster, &["get", "color"]), "blue\n");
    assert_eq!(done(&cluster, &["get", "color", "--raw"]), "blue");
    for level in ["linearizable", "lease", "eventual"] {
        let got = done(&cluster, &["get", "color", "--consistency", level]);
        assert_eq!(got, "blue\n", "{level}");
    }
    ends(
        &cluster,
        &["get", "colour"],
        UNMET,
        "there is no key colour",
    );
    // A value from standard input, and one from a file, as they are.
    fed(&cluster, &["put", "bytes"], b"\xff\n\0");
    let raw = run(&cluster, &["get", "bytes", "--raw"]).stdout;
    assert_eq!(raw, b"\xff\n\0");
    let shown = json(&done(&cluster, &["get", "bytes", "-o", "json"]));
    assert_eq!(shown["valueBase64"], "/woA");
    let home = scratch();
    let file = home.path().join("value");
    fs_err::write(&file, "x".repeat(200)).unwrap();
    done(
        &cluster,
        &["put", "large", "--file", file.to_str().unwrap()],
    );
    let table = done(&cluster, &["range", "large"]);
    assert!(table.contains("… (200 bytes)"), "{table}");
}

#[tokio::test]
async fn a_put_can_be_conditional() {
    let cluster = Cluster::form(1).await;
    done(&cluster, &["put", "a", "1", "--if-absent"]);
    let absent = ["put", "a", "2", "--if-absent"];
    ends(
        &cluster,
        &absent,
        UNMET,
        "nothing was changed: a is 1 since revision",
    );
    done(&cluster, &["put", "a", "2", "--if-value", "1"]);
    let kv = json(&done(&cluster, &["get", "a", "-o", "json"]));
    let revision = kv["modRevision"].to_string();
    done(&cluster, &["put", "a", "3", "--if-revision", &revision]);
    ends(
        &cluster,
        &["put", "a", "4", "--if-revision", &revision],
        UNMET,
        "a is 3",
    );
    let deleted = done(&cluster, &["put", "a", "4", "--previous"]);
    assert!(deleted.contains(" 3 "), "{deleted}");
    let both = run(
        &cluster,
        &["put", "a", "4", "--if-absent", "--if-value", "1"],
    );
    assert_eq!(both.status.code(), Some(2), "{:?}", told(&both));
}

#[tokio::test]
async fn ranges_are_shown_counted_and_deleted() {
    let cluster = Cluster::form(1).await;
    for key in ["a/1", "a/2", "a/3", "b/1"] {
        done(&cluster, &["put", key, "v", "--ttl", "1h"]);
    }
    let keys = |args: &[&str]| {
        let args = [&["range", "--keys-only"], args].concat();
        done(&cluster, &args).replace('\n', " ")
    };
    assert_eq!(keys(&[]), "a/1 a/2 a/3 b/1 ");
    assert_eq!(keys(&["--prefix", "a/", "--limit", "2"]), "a/1 a/2 ");
    assert_eq!(keys(&["a/2", "b"]), "a/2 a/3 ");
    assert_eq!(keys(&["--from", "a/3"]), "a/3 b/1 ");
    assert_eq!(
        done(&cluster, &["range", "--prefix", "a/", "--count"]),
        "3\n"
    );
    let details = done(&cluster, &["range", "--details", "b/1"]);
    assert!(details.contains("1h"), "{details}");
    let lines = done(&cluster, &["range", "-o", "json"]);
    assert_eq!(lines.lines().map(json).count(), 4);
    let only = done(&cluster, &["range", "b/1", "--keys-only", "-o", "json"]);
    assert!(json(&only).get("value").is_none(), "{only}");
    ends(&cluster, &["del"], USAGE, "which keys?");
    ends(&cluster, &["del", "--prefix", ""], USAGE, "use --all");
    ends(&cluster, &["range", "b", "a"], USAGE, "no key lies");
    let deleted = done(&cluster, &["del", "--prefix", "a/"]);
    assert!(deleted.starts_with("3 keys deleted"), "{deleted}");
    let deleted = json(&done(&cluster, &["del", "b/1", "--previous", "-o", "json"]));
    assert_eq!(deleted["deleted"], 1);
    assert_eq!(deleted["previous"][0]["key"], "b/1");
    assert_eq!(keys(&[]), "");
}

#[tokio::test]
async fn a_transaction_is_read_from_flags_or_standard_input() {
    let cluster = Cluster::form(1).await;
    let script = b"if absent a\nthen put a 'first value'\nelse get a\n";
    let first = fed(&cluster, &["txn"], script);
    assert!(first.starts_with("the comparisons held"), "{first}");
    let again = fed(&cluster, &["txn"], script);
    assert!(
        again.contains("did not hold") && again.contains("first value"),
        "{again}"
    );
    let flags = [
        "txn",
        "--if",
        "value a = 'first value'",
        "--then",
        "del a",
        "-o",
        "json",
    ];
    let deleted = json(&done(&cluster, &flags));
    assert_eq!(deleted["succeeded"], true);
    assert_eq!(deleted["results"][0]["deleted"], 1);
    ends(
        &cluster,
        &["txn", "--then", "puts a b"],
        USAGE,
        "not an operation",
    );
}

#[tokio::test]
async fn what_is_compacted_can_not_be_read() {
    let cluster = Cluster::form(1).await;
    let revision = |put: String| put.trim().rsplit(' ').next().unwrap().to_owned();
    let first = revision(done(&cluster, &["put", "a", "1"]));
    let second = revision(done(&cluster, &["put", "a", "2"]));
    assert_eq!(done(&cluster, &["get", "a", "--revision", &first]), "1\n");
    done(&cluster, &["compact", &second]);
    for done_before in [&first, &second] {
        let again = done(&cluster, &["compact", done_before]);
        assert!(again.contains("history already begins"), "{again}");
    }
    let future = ["compact", "999999"];
    ends(&cluster, &future, FAILED, "nothing was changed");
    ends(
        &cluster,
        &["get", "a", "--revision", &first],
        FAILED,
        "compacted",
    );
    ends(
        &cluster,
        &["watch", "a", "--from-revision", &first],
        FAILED,
        "compacted",
    );
}

/// A script would take a part of it for all.
#[tokio::test]
async fn what_can_not_be_written_is_an_error_and_who_reads_no_more_is_none() {
    let cluster = Cluster::form(1).await;
    done(&cluster, &["put", "a", "1"]);
    let endpoints = cluster.endpoints().join(",");
    let mut range = dengine();
    range.args(["range", "--endpoints", &endpoints]);
    let full = fs_err::File::create("/dev/full").unwrap();
    let output = range.stdout(full.into_file()).output().unwrap();
    assert_eq!(output.status.code(), Some(FAILED), "{:?}", told(&output));
    let mut put = dengine();
    put.args(["put", "b", "1", "--endpoints", &endpoints]);
    let full = fs_err::File::create("/dev/full").unwrap();
    let output = put.stdout(full.into_file()).output().unwrap();
    assert_eq!(output.status.code(), Some(FAILED), "{:?}", told(&output));
    let (_, err) = told(&output);
    assert!(
        err.contains("took effect") && err.contains("standard output"),
        "{err}"
    );
    assert_eq!(done(&cluster, &["get", "b"]), "1\n");
    let mut watch = dengine()
        .args(["watch", "--from-revision", "1", "--endpoints", &endpoints])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    drop(watch.stdout.take());
    done(&cluster, &["put", "a", "2"]);
    assert!(watch.wait().unwrap().success());
}

/// A plain write is sent once: it waited there for all of its time.
#[tokio::test]
async fn a_write_goes_to_who_answers() {
    let cluster = Cluster::form(1).await;
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoints = format!(
        "{},{}",
        silent.local_addr().unwrap(),
        cluster.endpoints()[0]
    );
    let output = dengine()
        .args(["put", "a", "1", "--endpoints", &endpoints])
        .output()
        .unwrap();
    assert!(output.status.success(), "{:?}", told(&output));
}

/// Its leader is killed meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_outlives_the_leader() {
    let mut cluster = Cluster::form(3).await;
    let mut watch = dengine()
        .args(["watch", "--prefix", "a/", "--count", "3", "-o", "json"])
        .args(["--from-revision", "1"])
        .args(["--endpoints", &cluster.endpoints().join(",")])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(watch.stdout.take().unwrap()).lines();
    let mut lines = lines.map(|line| json(&line.unwrap()));
    done(&cluster, &["put", "a/1", "v"]);
    assert_eq!(lines.next().unwrap()["key"], "a/1");
    let leader = cluster.leader().await;
    cluster.members[leader].kill();
    cluster.client().await.put("a/2", "v").await.unwrap();
    cluster.client().await.delete("a/1").await.unwrap();
    let told: Vec<_> = lines.collect();
    assert_eq!(told[0]["key"], "a/2");
    assert_eq!(
        (&told[1]["key"], &told[1]["event"]),
        (&"a/1".into(), &"delete".into())
    );
    assert!(watch.wait().unwrap().success());
}

#[tokio::test]
async fn a_watch_says_that_all_members_went_and_that_one_is_back() {
    let mut cluster = Cluster::form(1).await;
    let mut watch = dengine()
        .args(["watch", "--from-revision", "1"])
        .args(["--endpoints", &cluster.endpoints()[0]])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut events = BufReader::new(watch.stdout.take().unwrap()).lines();
    let mut said = BufReader::new(watch.stderr.take().unwrap()).lines();
    let mut said = |part: &str| said.by_ref().any(|line| line.unwrap().contains(part));
    done(&cluster, &["put", "a", "1"]);
    assert!(events.next().unwrap().unwrap().contains("put a 1"));
    cluster.members[0].kill();
    assert!(said("no member serves the watch any more"));
    cluster.members[0].start();
    assert!(said("a member serves the watch again"));
    done(&cluster, &["put", "a", "2"]);
    assert!(events.next().unwrap().unwrap().contains("put a 2"));
    watch.kill().unwrap();
    watch.wait().unwrap();
}

#[test]
fn nobody_there_is_said_with_what_to_do() {
    let output = dengine()
        .args(["get", "a", "--endpoints", "127.0.0.1:1"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    let (_, err) = told(&output);
    assert!(
        err.contains("127.0.0.1:1") && err.contains("--endpoints"),
        "{err}"
    );
}

/// As in a script whose variable was never set.
#[tokio::test]
async fn an_empty_variable_names_no_endpoints() {
    let cluster = Cluster::form(1).await;
    let empty = |args: &[&str]| {
        let mut command = dengine();
        command.env("DENGINE_ENDPOINTS", "").args(args);
        command.output().unwrap()
    };
    // Nobody listens at the default there, and it is that which is said.
    let output = empty(&["get", "a", "--timeout", "1s"]);
    let (_, err) = told(&output);
    assert!(!err.contains("the port is missing"), "{err}");
    let output = empty(&["put", "a", "1", "--endpoints", &cluster.endpoints()[0]]);
    assert!(output.status.success(), "{:?}", told(&output));
    let flag = empty(&["get", "a", "--endpoints", ""]);
    assert_eq!(flag.status.code(), Some(USAGE), "{:?}", told(&flag));
}

#[test]
fn shells_and_man_are_told_the_command_line() {
    let output = dengine().args(["completions", "bash"]).output().unwrap();
    assert!(
        told(&output).0.contains("_dengine()"),
        "{:?}",
        told(&output)
    );
    let home = scratch();
    let made = dengine().arg("man").arg(home.path()).output().unwrap();
    assert!(made.status.success(), "{:?}", told(&made));
    let page = fs_err::read_to_string(home.path().join("dengine-put.1")).unwrap();
    assert!(page.contains("if\\-absent"), "{page}");
    assert!(page.contains("DENGINE_ENDPOINTS"), "{page}");
}
