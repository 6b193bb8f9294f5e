//! The first pod: gathers the others, gives orders, and has their answers.

use std::collections::BTreeMap;
use std::net::{Ipv6Addr, SocketAddr};
use std::time::{Duration, Instant};

use anyhow::Context;
use dengine_bench_model::results::Shape;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::timeout;

use super::line::{self, Answer, Ended, Line, Order};
use super::merge::{self, Part};
use super::{ADVICE, STOP_LIMIT, Spans, named};
use crate::cli::Cli;
use crate::cut::Cut;
use crate::load::Measured;

/// Who connects has to say so soon who it is.
const HELLO_LIMIT: Duration = Duration::from_secs(1);

/// The other pods, as the first sees them.
pub struct Team {
    pods: u32,
    peers: Vec<Peer>,
    /// Which pod is lost, and what to do; the first of them.
    lost: watch::Sender<Option<String>>,
    /// Where the pods are, the first included.
    nodes: Vec<String>,
    /// When the others were told to begin.
    told: Option<Instant>,
}

/// Another pod.
struct Peer {
    index: u32,
    line: Line<Order, Answer>,
    /// When it was heard to begin the load that is under way.
    heard: Option<Instant>,
    /// What came of that load, once it said so.
    ended: Option<Ended>,
}

/// What came of a connection.
enum Came {
    Joined(u32, Joined),
    Refused(u32, String),
    Nobody,
}

/// A pod that has come.
struct Joined {
    line: Line<Order, Answer>,
    node: Option<String>,
}

impl Team {
    /// Waits for all other pods. A team that is not complete has lost those that did not come.
    pub async fn gather(cli: &Cli, cut: &Cut) -> Self {
        let pods = cli.options.pods.pods;
        let (lost, _) = watch::channel(None);
        let mut team = Self {
            pods,
            peers: Vec::new(),
            lost,
            nodes: Vec::new(),
            told: None,
        };
        match gathered(cli, cut).await {
            Ok(joined) => team.take(cli, joined),
            Err(error) => {
                team.lost.send_replace(Some(format!("{error:#}")));
            }
        }
        team
    }

    fn take(&mut self, cli: &Cli, joined: BTreeMap<u32, Joined>) {
        let own = cli.options.result.node.clone();
        let others = joined.values().map(|joined| joined.node.clone());
        self.nodes = std::iter::once(own).chain(others).flatten().collect();
        for (index, Joined { line, .. }) in joined {
            let (end, lost) = (line.lost(), self.lost.clone());
            let who = named(index, self.pods);
            tokio::spawn(async move {
                let why = line::lost(end).await;
                note(&lost, lost_in_words(&who, &why));
            });
            self.peers.push(Peer {
                index,
                line,
                heard: None,
                ended: None,
            });
        }
    }

    /// How many pods there are.
    #[must_use]
    pub fn pods(&self) -> u32 {
        self.pods
    }

    /// The nodes that the pods run on, the first one's included.
    #[must_use]
    pub fn nodes(&self) -> &[String] {
        &self.nodes
    }

    /// Which pod is lost, if any is, and what to do.
    #[must_use]
    pub fn lost(&self) -> Option<String> {
        self.lost.borrow().clone()
    }

    /// Resolves once one is.
    pub(crate) fn loss(&self) -> impl Future<Output = String> + use<> {
        line::lost(self.lost.subscribe())
    }

    /// All that send this workload carry an order out.
    ///
    /// # Errors
    /// Which one did not, and why.
    async fn carry_out(&mut self, shape: &Shape, order: &Order) -> anyhow::Result<()> {
        let (pods, lost) = (self.pods, self.lost.clone());
        let mut failed = None;
        let peers = self.loading(shape);
        peers.iter().for_each(|peer| peer.line.send(order.clone()));
        // Each answer is taken, so that none is left for the next order.
        for peer in peers {
            let who = named(peer.index, pods);
            let why = match peer.line.next().await {
                Ok((_, Answer::Done)) => continue,
                Ok((_, Answer::Failed { why })) => why,
                Ok((_, answer)) => format!("it answered {answer:?}"),
                Err(why) => {
                    note(&lost, lost_in_words(&who, &why));
                    why
                }
            };
            failed.get_or_insert(format!("{who}: {why}"));
        }
        failed.map_or(Ok(()), |failed| Err(anyhow::Error::msg(failed)))
    }

    /// The pods that send this workload but for the first.
    fn loading(&mut self, shape: &Shape) -> &mut [Peer] {
        let loading = dengine_bench_model::pods::loading(self.pods, shape) as usize;
        let others = (loading - 1).min(self.peers.len());
        &mut self.peers[..others]
    }

    /// All that send this workload connect to the target.
    ///
    /// # Errors
    /// Which one could not, and why.
    pub(crate) async fn connect(
        &mut self,
        shape: &Shape,
        task: usize,
        endpoints: &[String],
        folder: &[u8],
    ) -> anyhow::Result<()> {
        let order = Order::Connect {
            task,
            endpoints: endpoints.to_vec(),
            folder: String::from_utf8_lossy(folder).into_owned(),
        };
        self.carry_out(shape, &order).await
    }

    /// All that send this workload see the keys that it reads.
    ///
    /// # Errors
    /// Which one did not, and why.
    pub(crate) async fn settle(
        &mut self,
        shape: &Shape,
        task: usize,
        revision: u64,
    ) -> anyhow::Result<()> {
        self.carry_out(shape, &Order::Settle { task, revision })
            .await
    }

    /// All that send this workload make clients ready for it; without a repetition, for the
    /// warm-up.
    pub(crate) fn make_ready(&mut self, shape: &Shape, task: usize, repetition: Option<u64>) {
        self.told = None;
        for peer in self.loading(shape) {
            (peer.heard, peer.ended) = (None, None);
            peer.line.send(Order::Load { task, repetition });
        }
    }

    /// Waits until they are, tells them to begin, and resolves when they have.
    ///
    /// # Errors
    /// Which one is not, and why.
    pub(crate) async fn begin(&mut self, shape: &Shape) -> Result<(), String> {
        let pods = self.pods;
        let mut failed = None;
        for peer in self.loading(shape) {
            if let Err(why) = peer.ready().await {
                failed.get_or_insert(format!("{}: {why}", named(peer.index, pods)));
            }
        }
        if let Some(failed) = failed {
            return Err(failed);
        }
        self.told = Some(Instant::now());
        let peers = self.loading(shape);
        peers.iter().for_each(|peer| peer.line.send(Order::Go));
        for peer in peers {
            peer.begun()
                .await
                .map_err(|why| format!("{}: {why}", named(peer.index, pods)))?;
        }
        Ok(())
    }

    /// What came of the load, now that the first pod's own part has ended; what the others' tool
    /// spent on it; and when all began, if they did.
    pub(crate) async fn end(
        &mut self,
        shape: &Shape,
        own: Measured,
        cut: &Cut,
    ) -> (Measured, Duration, Spans) {
        let began = own
            .began
            .filter(|_| !cut.is_over() && self.lost().is_none());
        let loss = self.loss();
        let stop = match began {
            None => own.first_error.clone().or(self.lost()),
            Some(_) => tokio::select! {
                () = all_ended(self.loading(shape)) => None,
                why = loss => Some(why),
                why = cut.reason() => Some(why),
            },
        };
        if let Some(why) = stop.or_else(|| began.is_none().then(|| "it was cut".to_owned())) {
            let peers = self.loading(shape);
            let order = Order::Stop { why };
            peers.iter().for_each(|peer| peer.line.send(order.clone()));
            let _ = timeout(STOP_LIMIT, all_ended(peers)).await;
        }
        self.result(shape, own)
    }

    fn result(&mut self, shape: &Shape, own: Measured) -> (Measured, Duration, Spans) {
        let (pods, told, mut parts) = (self.pods, self.told, Vec::new());
        let since = |moment: Option<Instant>| {
            let both = moment.zip(told);
            both.map(|(moment, told)| moment.saturating_duration_since(told))
        };
        let mut silent = None;
        for peer in self.loading(shape) {
            match peer.ended.take() {
                Some(ended) => parts.push(Part {
                    index: peer.index,
                    heard_after: since(peer.heard).unwrap_or_default(),
                    ended,
                }),
                None => silent = silent.or(Some(peer.index)),
            }
        }
        if let Some(index) = silent {
            let who = named(index, pods);
            note(&self.lost, lost_in_words(&who, "it did not end its load"));
        }
        let own_late = since(own.began).unwrap_or_default();
        match merge::merged(own.clone(), own_late, &parts, pods) {
            Ok((all, spans, cpu)) => (all, cpu, spans),
            Err(error) => {
                note(
                    &self.lost,
                    format!("a pod sent a result that cannot be read: {error:#}"),
                );
                (own, Duration::ZERO, Spans::default())
            }
        }
    }

    /// All is measured: the others may go.
    pub async fn dismiss(self) {
        for peer in self.peers {
            // Of a warm-up that was cut short.
            peer.line.send(Order::Stop {
                why: "the run is over".to_owned(),
            });
            peer.line.send(Order::Bye);
            peer.line.close().await;
        }
    }
}

fn lost_in_words(who: &str, why: &str) -> String {
    format!("{who} was lost: {why}; {ADVICE}")
}

/// Keeps the first.
fn note(lost: &watch::Sender<Option<String>>, why: String) {
    lost.send_if_modified(|known| {
        let is_first = known.is_none();
        if is_first {
            *known = Some(why);
        }
        is_first
    });
}

/// May be given up and asked for again: what was told is kept.
async fn all_ended(peers: &mut [Peer]) {
    for peer in peers {
        while peer.ended.is_none() {
            match peer.line.next().await {
                Ok((_, Answer::Ended(ended))) => peer.ended = Some(*ended),
                // Of a load that was stopped before it began.
                Ok(_) => {}
                // Whoever awaits its loss knows.
                Err(_) => break,
            }
        }
    }
}

impl Peer {
    async fn ready(&mut self) -> Result<(), String> {
        match self.line.next().await? {
            (_, Answer::Ready) => Ok(()),
            (_, answer) => Err(self.instead(answer)),
        }
    }

    async fn begun(&mut self) -> Result<(), String> {
        match self.line.next().await? {
            (arrived, Answer::Begun) => {
                self.heard = Some(arrived);
                Ok(())
            }
            (_, answer) => Err(self.instead(answer)),
        }
    }

    /// Why its load ended early.
    fn instead(&mut self, answer: Answer) -> String {
        match answer {
            Answer::Ended(ended) => {
                let why = ended.first_error.clone();
                self.ended = Some(*ended);
                why.unwrap_or_else(|| "its load ended before it began".to_owned())
            }
            answer => format!("it answered {answer:?}"),
        }
    }
}

/// # Errors
/// Who is missing when the time is up, or why the waiting ended.
async fn gathered(cli: &Cli, cut: &Cut) -> anyhow::Result<BTreeMap<u32, Joined>> {
    let options = &cli.options.pods;
    let port = options
        .port()
        .context("checked when the command line was parsed")?;
    let everywhere = SocketAddr::from((Ipv6Addr::UNSPECIFIED, port));
    let listener = dengine_listen::listen(everywhere)
        .and_then(TcpListener::from_std)
        .with_context(|| format!("listening for the other pods on port {port}"))?;
    let (mut joined, mut refused) = (BTreeMap::new(), BTreeMap::new());
    let joining = async {
        while joined.len() + 1 < options.pods as usize {
            // A connection that failed at once says nothing of the pods.
            let Ok((stream, _)) = listener.accept().await else {
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            };
            let came = timeout(HELLO_LIMIT, admit(cli, stream)).await;
            match came.unwrap_or(Came::Nobody) {
                // One that comes again was not answered in time, or was started again.
                Came::Joined(index, came) => drop(joined.insert(index, came)),
                Came::Refused(index, why) => drop(refused.insert(index, why)),
                Came::Nobody => {}
            }
        }
    };
    let late = tokio::select! {
        done = timeout(options.join_timeout, joining) => done.is_err(),
        why = cut.reason() => anyhow::bail!(why),
    };
    if late {
        let missing = || (1..options.pods).filter(|index| !joined.contains_key(index));
        if let Some(why) = missing().find_map(|index| refused.get(&index)) {
            anyhow::bail!("{why}; start all pods alike, and run again");
        }
        let missing: Vec<String> = missing().map(|index| index.to_string()).collect();
        anyhow::bail!(
            "of {} pods (counted from 0) {} did not come within {:?}; {ADVICE}",
            options.pods,
            missing.join(", "),
            options.join_timeout
        );
    }
    Ok(joined)
}

/// Takes part whoever is one of the pods and does the same as this one; nobody else gets an answer
/// but that.
async fn admit(cli: &Cli, stream: TcpStream) -> Came {
    let Ok(mut line) = Line::<Order, Answer>::over(stream) else {
        return Came::Nobody;
    };
    let Ok((_, Answer::Hello { index, flags, node })) = line.next().await else {
        return Came::Nobody;
    };
    let pods = cli.options.pods.pods;
    let who = named(index, pods);
    let refused = if !(1..pods).contains(&index) {
        Some(format!("there is no {who} beside the first"))
    } else if flags != cli.measured_alike() {
        Some(format!("{who} was started with other flags than the first"))
    } else {
        None
    };
    if let Some(why) = refused {
        tracing::warn!(why, "a pod was refused");
        line.send(Order::Refused { why: why.clone() });
        line.close().await;
        return Came::Refused(index, why);
    }
    line.send(Order::Welcome);
    Came::Joined(index, Joined { line, node })
}
