//! `kubectl-dengine put`, `get` and their like against real members, through an API server that the
//! test is itself.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod api_server;
mod members;

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use dengine_crds::names::cluster::pod;
use dengine_testkit::without_settings;
use serde_json::{Value, json};
use tempfile::TempDir;

use self::api_server::ApiServer;
use self::members::Members;

/// The command line is wrong.
const USAGE: i32 = 2;
/// There is no such key, or a condition did not hold.
const UNMET: i32 = 5;

struct World {
    api: ApiServer,
    members: Members,
    home: TempDir,
}

impl World {
    async fn new() -> Self {
        let members = Members::form();
        let api = ApiServer::start().await;
        for (ordinal, address) in (0..).zip(members.addresses()) {
            api.put_pod(&pod("demo", ordinal), address);
        }
        let world = Self {
            api,
            members,
            home: TempDir::new().unwrap(),
        };
        fs_err::write(world.kubeconfig(), world.config().to_string()).unwrap();
        world
    }

    fn kubeconfig(&self) -> PathBuf {
        self.home.path().join("config")
    }

    fn config(&self) -> Value {
        json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "here",
            "clusters": [{"name": "it",
                          "cluster": {"server": format!("http://{}", self.api.address)}}],
            "users": [{"name": "me", "user": {}}],
            "contexts": [{"name": "here",
                          "context": {"cluster": "it", "user": "me", "namespace": "test"}}],
        })
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kubectl-dengine"));
        without_settings(&mut command);
        command.arg("--kubeconfig").arg(self.kubeconfig());
        command.args(args).stdin(Stdio::null());
        command
    }

    /// Runs it, expects it to succeed, and returns what it said.
    fn done(&self, args: &[&str]) -> String {
        let output = self.command(args).output().unwrap();
        assert!(output.status.success(), "{args:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// Expects it to end with this code, and these words in what it complains of.
    fn ends(&self, args: &[&str], code: i32, parts: &[&str]) {
        let output = self.command(args).output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{args:?}: {output:?}");
        let said = String::from_utf8(output.stderr).unwrap();
        for part in parts {
            assert!(said.contains(part), "{args:?}: {part} is not in {said}");
        }
    }

    /// With something on standard input.
    fn fed(&self, args: &[&str], input: &[u8]) -> Output {
        let mut command = self.command(args);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        child.stdin.take().unwrap().write_all(input).unwrap();
        child.wait_with_output().unwrap()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_are_written_and_read_through_forwarded_ports() {
    let world = World::new().await;
    let put = world.done(&["put", "demo", "color", "blue"]);
    assert!(put.starts_with("revision "), "{put}");
    assert_eq!(world.done(&["get", "demo", "color"]), "blue\n");
    assert_eq!(world.done(&["get", "demo", "color", "--raw"]), "blue");
    let fed = world.fed(&["put", "demo", "bytes"], b"\xff\n\0");
    assert!(fed.status.success(), "{fed:?}");
    let shown = world.done(&["get", "demo", "bytes", "--output=json"]);
    assert!(shown.contains(r#""valueBase64":"/woA""#), "{shown}");
    let file = world.home.path().join("value");
    fs_err::write(&file, "x".repeat(1 << 20)).unwrap();
    world.done(&["put", "demo", "large", "--file", file.to_str().unwrap()]);
    let large = world.done(&["get", "demo", "large", "--raw"]);
    assert_eq!(large.len(), 1 << 20);
    assert_eq!(world.done(&["range", "demo", "--count"]), "3\n");
    let script = b"if exists color\nthen put color green\n";
    let moved = world.fed(&["txn", "demo"], script);
    let moved = String::from_utf8(moved.stdout).unwrap();
    assert!(moved.starts_with("the comparisons held"), "{moved}");
    let deleted = world.done(&["del", "demo", "--all"]);
    assert!(deleted.starts_with("3 keys deleted"), "{deleted}");
    world.done(&["compact", "demo", "2"]);
    world.ends(&["get", "demo", "color"], UNMET, &["there is no key color"]);
    world.ends(&["del", "demo"], USAGE, &["which keys?"]);
    world.ends(&["put", "demo"], USAGE, &["<KEY>"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_goes_on_while_pods_go_and_come() {
    let mut world = World::new().await;
    let mut watch = world
        .command(&["watch", "demo", "--from-revision=1", "--count=4"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(watch.stdout.take().unwrap()).lines();
    let mut told = |part: &str| {
        let line = lines.next().unwrap().unwrap();
        assert!(line.contains(part), "{line}");
    };
    world.done(&["put", "demo", "n", "1"]);
    told("put n 1");
    // The one that leads, and where the watch began; then one that may lead by now.
    for (place, values) in [(0, ["2", "3"]), (1, ["4", "5"])] {
        let name = pod("demo", u32::try_from(place).unwrap());
        world.members.kill(place);
        // Kubernetes does not know it yet.
        world.done(&["put", "demo", "n", values[0], "--timeout=30s"]);
        told(&format!("put n {}", values[0]));
        world.api.remove_pod(&name);
        if place == 1 {
            break;
        }
        world.done(&["put", "demo", "n", values[1], "--timeout=30s"]);
        told(&format!("put n {}", values[1]));
        world.members.start(place);
        world.api.put_pod(&name, world.members.addresses()[place]);
    }
    assert!(watch.wait().unwrap().success());
    assert_eq!(world.done(&["get", "demo", "n", "--timeout=30s"]), "4\n");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_keeps_from_a_cluster_is_said_with_what_to_do() {
    let mut world = World::new().await;
    let nobody = [
        "there is no cluster nobody in the namespace test",
        "kubectl get",
    ];
    world.ends(&["get", "nobody", "a"], 1, &nobody);
    world.ends(&["get", "other", "a"], 1, &["add --namespace prod"]);
    for place in 0..3 {
        world.members.kill(place);
    }
    let refused = ["no member of demo is reached", "demo-", "refused"];
    world.ends(&["put", "demo", "a", "1"], 1, &refused);
    world.api.forbid();
    let forbidden = [
        "get and create on pods/portforward",
        "in the namespace test",
    ];
    world.ends(&["get", "demo", "a"], 1, &forbidden);
    for place in 0..3 {
        world.api.remove_pod(&pod("demo", place));
    }
    world.ends(&["get", "demo", "a"], 1, &["there is no cluster demo"]);
}
