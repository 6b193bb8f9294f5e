//! `kubectl dengine put`, `get`, `watch` and their like from outside of Kubernetes, through
//! forwarded ports, while every pod of the cluster is deleted once.

use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use dengine_local_kubernetes::shell;
use k8s_openapi::api::core::v1::Pod;
use tokio::io::{AsyncBufReadExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};
use tokio::time::{Instant, sleep, timeout};

use crate::load::say;
use crate::plugin::{dengine, dengine_command};
use crate::support::{READY_PATIENCE, World, test};

/// Between two tries of a write.
const PAUSE: Duration = Duration::from_millis(500);

// What a watch says is awaited while this thread waits for a command.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn the_plugin_writes_reads_and_watches_keys_while_pods_are_deleted() {
    test("keys", async |world| {
        world.make_cluster("k", 3).await?;
        writes_and_reads(world)?;
        says_what_is_wrong(world)?;
        watches(world).await
    })
    .await;
}

fn writes_and_reads(world: &World) -> Result<()> {
    let put = dengine(world, &["put", "k", "color", "blue"])?;
    ensure!(put.starts_with("revision "), "{put}");
    let got = dengine(world, &["get", "k", "color"])?;
    ensure!(got == "blue\n", "{got}");
    let mut put = dengine_command(world, &["put", "k", "from-input"])?;
    shell::run_with_input(&mut put, "as it is")?;
    let got = dengine(world, &["get", "k", "from-input", "--raw"])?;
    ensure!(got == "as it is", "{got}");
    let script = "if exists color\nthen put color green\nelse get color\n";
    let mut txn = dengine_command(world, &["txn", "k"])?;
    let moved = shell::run_with_input(&mut txn, script)?;
    ensure!(moved.starts_with("the comparisons held"), "{moved}");
    let keys = dengine(world, &["range", "k", "--keys-only"])?;
    ensure!(keys == "color\nfrom-input\n", "{keys}");
    let deleted = dengine(world, &["del", "k", "--prefix", "from-"])?;
    ensure!(deleted.starts_with("1 key deleted"), "{deleted}");
    dengine(world, &["compact", "k", "2"]).map(drop)
}

fn says_what_is_wrong(world: &World) -> Result<()> {
    let mut get = dengine_command(world, &["get", "k", "colour"])?;
    let code = get.stdin(Stdio::null()).output()?.status.code();
    ensure!(code == Some(5), "{code:?} of a key that there is not");
    let nobody = dengine(world, &["get", "nobody", "color"]);
    let words = nobody.err().map(|error| format!("{error:#}"));
    let expected = format!(
        "there is no cluster nobody in the namespace {}",
        world.namespace
    );
    ensure!(
        words
            .as_deref()
            .is_some_and(|words| words.contains(&expected)),
        "{words:?}"
    );
    Ok(())
}

async fn watches(world: &World) -> Result<()> {
    let mut watch = Watch::start(world)?;
    put(world, "before").await?;
    watch.until("put color before").await?;
    let pods = world.uids::<Pod>("k").await?;
    for pod in pods.keys() {
        say(format_args!("    {pod} is deleted"));
        world.kubectl(&["delete", "pod", pod, "--wait=false"])?;
        let meanwhile = format!("while-{pod}-goes");
        put(world, &meanwhile).await?;
        watch.until(&format!("put color {meanwhile}")).await?;
        world.await_settled("k", pods.len()).await?;
    }
    let now = world.uids::<Pod>("k").await?;
    ensure!(
        now.iter().all(|(pod, uid)| pods.get(pod) != Some(uid)),
        "before {pods:?}, now {now:?}"
    );
    put(world, "after").await?;
    watch.until("put color after").await?;
    let got = dengine(world, &["get", "k", "color"])?;
    ensure!(got == "after\n", "{got}");
    Ok(())
}

/// Sets the key. A plain write whose member goes may or may not have been done, and is not sent
/// again by the plugin: who writes always the same may do so.
async fn put(world: &World, value: &str) -> Result<()> {
    let deadline = Instant::now() + READY_PATIENCE;
    loop {
        match dengine(world, &["put", "k", "color", value]) {
            Ok(_) => return Ok(()),
            Err(error) if Instant::now() > deadline => return Err(error),
            Err(error) => say(format_args!("    {value}: {error:#}")),
        }
        sleep(PAUSE).await;
    }
}

/// `kubectl dengine watch`, which ends with the test.
struct Watch {
    lines: Lines<BufReader<ChildStdout>>,
    process: Child,
}

impl Watch {
    fn start(world: &World) -> Result<Self> {
        let command = dengine_command(world, &["watch", "k", "color", "--from-revision=2"])?;
        let mut process = Command::from(command)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let stdout = process.stdout.take().context("it was piped above")?;
        Ok(Self {
            lines: BufReader::new(stdout).lines(),
            process,
        })
    }

    /// Waits until it tells this. A write that was sent twice is told twice.
    async fn until(&mut self, part: &str) -> Result<()> {
        let told = async {
            while let Some(line) = self.lines.next_line().await? {
                if line.contains(part) {
                    return Ok(());
                }
            }
            bail!("it ended: {}", self.process.wait().await?)
        };
        let told = timeout(READY_PATIENCE, told).await;
        told.with_context(|| format!("the watch does not tell {part:?}"))?
    }
}
