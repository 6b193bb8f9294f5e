//! Ports of loopback, one for each member of a cluster. Whoever connects to one gets a way of his
//! own to that member, or to another one while that one is not ready: any member serves, and a
//! connection that breaks is made again by the client. Like those of `kubectl port-forward`, the
//! ports are open to everybody on this machine for as long as the program runs.
//!
//! What Kubernetes has to do with it is in [`Ways`].

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::time::sleep;

/// A connection that no member takes is closed after this: the client makes the next one at once.
const PAUSE: Duration = Duration::from_millis(500);

/// How members are found and reached.
pub(super) trait Ways: Send + Sync + 'static {
    /// Bytes to and from a member.
    type Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static;

    /// The members that there are now.
    fn members(&self) -> impl Future<Output = Result<Vec<Member>, Broken>> + Send;

    /// A way to the port for clients of the member of this name.
    fn open(&self, member: &str) -> impl Future<Output = Result<Way<Self::Stream>, Broken>> + Send;
}

/// A way to a member that has spoken: it is there.
#[derive(Debug)]
pub(super) struct Way<S> {
    pub(super) stream: S,
    /// What it has said so far.
    pub(super) greeting: Vec<u8>,
}

/// Why there is no way.
#[derive(Debug, thiserror::Error)]
pub(super) enum Broken {
    /// Whoever asks may not, which no other member changes.
    #[error("{0}")]
    Forbidden(String),
    /// For all other reasons.
    #[error("{0}")]
    Failed(String),
}

/// A member, as Kubernetes sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Member {
    pub(super) name: String,
    pub(super) state: PodState,
}

/// Whether a way to it makes sense, best first.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum PodState {
    /// It serves.
    Ready,
    /// It runs, and may serve eventual reads at least.
    Running,
    /// It is about to end.
    Leaving,
    /// It does not run, for this reason.
    Down(String),
}

impl PodState {
    pub(super) fn runs(&self) -> bool {
        !matches!(self, Self::Down(_))
    }
}

impl fmt::Display for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match &self.state {
            PodState::Ready => "ready",
            PodState::Running => "not ready",
            PodState::Leaving => "terminating",
            PodState::Down(why) => why,
        };
        write!(f, "{} ({state})", self.name)
    }
}

/// In which order members are tried for a connection that is meant for one of them.
fn order(meant: &str, mut members: Vec<Member>) -> Vec<String> {
    members.retain(|it| it.state.runs());
    members.sort_by_key(|it| (it.state.clone(), it.name != meant));
    members.into_iter().map(|it| it.name).collect()
}

/// The ports.
#[derive(Debug)]
pub(super) struct Forwards<W> {
    ways: W,
    /// Why there was no way to a member, if that is so.
    failure: Mutex<Option<String>>,
}

/// What came of the first way to each member.
type First = Result<(), Broken>;

impl<W: Ways> Forwards<W> {
    pub(super) fn new(ways: W) -> Arc<Self> {
        Arc::new(Self {
            ways,
            failure: Mutex::default(),
        })
    }

    pub(super) fn ways(&self) -> &W {
        &self.ways
    }

    /// Why nobody was reached the last time that this was tried, if nobody was.
    pub(super) fn failure(&self) -> Option<String> {
        self.lock().clone()
    }

    /// Opens a port for each member, and waits until one leads to its member. Those that serve are
    /// first.
    ///
    /// # Errors
    /// Why none does.
    pub(super) async fn open(
        self: &Arc<Self>,
        mut members: Vec<Member>,
    ) -> anyhow::Result<Vec<(String, SocketAddr)>> {
        members.sort_by_key(|it| it.state.clone());
        let (tell, mut told) = mpsc::unbounded_channel();
        let mut opened = Vec::with_capacity(members.len());
        for member in members {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
            opened.push((member.name.clone(), listener.local_addr()?));
            tokio::spawn(Arc::clone(self).serve(listener, member, tell.clone()));
        }
        drop(tell);
        let mut failed: Option<Broken> = None;
        while let Some(first) = told.recv().await {
            match (first, &failed) {
                (Ok(()), _) => return Ok(opened),
                (Err(broken @ Broken::Forbidden(_)), _) | (Err(broken), None) => {
                    failed = Some(broken);
                }
                (Err(_), Some(_)) => {}
            }
        }
        match failed {
            Some(broken) => Err(broken.into()),
            None => anyhow::bail!("there is none"),
        }
    }

    /// For as long as the program runs.
    async fn serve(
        self: Arc<Self>,
        listener: TcpListener,
        member: Member,
        tell: mpsc::UnboundedSender<First>,
    ) {
        let mut first = None;
        if member.state.runs() {
            match self.ways.open(&member.name).await {
                Ok(way) => {
                    first = Some(way);
                    let _ = tell.send(Ok(()));
                }
                Err(broken) => {
                    let _ = tell.send(Err(broken));
                }
            }
        }
        drop(tell);
        loop {
            let Ok((client, _)) = listener.accept().await else {
                // Too many files are open, and some may be closed soon.
                sleep(PAUSE).await;
                continue;
            };
            let (forwards, first, name) = (Arc::clone(&self), first.take(), member.name.clone());
            tokio::spawn(async move {
                match first {
                    Some(way) => carry(client, way).await,
                    None => forwards.lead(client, &name).await,
                }
            });
        }
    }

    /// Leads a connection to the member that it is meant for, or else to another one.
    async fn lead(&self, client: TcpStream, meant: &str) {
        let way = self.find(meant).await;
        *self.lock() = way.as_ref().err().map(ToString::to_string);
        match way {
            Ok(way) => carry(client, way).await,
            Err(_) => sleep(PAUSE).await,
        }
    }

    async fn find(&self, meant: &str) -> Result<Way<W::Stream>, Broken> {
        let mut failed = Broken::Failed("no member runs".to_owned());
        for member in order(meant, self.ways.members().await?) {
            match self.ways.open(&member).await {
                Ok(way) => return Ok(way),
                Err(broken @ Broken::Forbidden(_)) => return Err(broken),
                Err(broken) => failed = broken,
            }
        }
        Err(failed)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<String>> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Until either side ends it. What that comes to, both of them notice.
async fn carry(mut client: TcpStream, mut way: Way<impl AsyncRead + AsyncWrite + Unpin>) {
    let _ = client.set_nodelay(true);
    if client.write_all(&way.greeting).await.is_ok() {
        let _ = copy_bidirectional(&mut client, &mut way.stream).await;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use tokio::io::{AsyncReadExt as _, DuplexStream, duplex};

    use super::*;

    /// Members that say their name to whoever comes, and then what they are told.
    #[derive(Default)]
    struct Fake {
        states: Mutex<BTreeMap<&'static str, PodState>>,
        /// Those to which there is no way, whatever their state is.
        broken: Mutex<Vec<&'static str>>,
        forbidden: bool,
        opened: Mutex<Vec<String>>,
    }

    impl Fake {
        fn with(states: &[(&'static str, PodState)]) -> Self {
            Self {
                states: Mutex::new(states.iter().cloned().collect()),
                ..Self::default()
            }
        }

        fn now(&self) -> Vec<Member> {
            let states = self.states.lock().unwrap();
            let member = |(name, state): (&&str, &PodState)| Member {
                name: (*name).to_owned(),
                state: state.clone(),
            };
            states.iter().map(member).collect()
        }
    }

    impl Ways for Fake {
        type Stream = DuplexStream;

        async fn members(&self) -> Result<Vec<Member>, Broken> {
            Ok(self.now())
        }

        async fn open(&self, member: &str) -> Result<Way<DuplexStream>, Broken> {
            if self.forbidden {
                return Err(Broken::Forbidden("it may not".to_owned()));
            }
            let state = self.states.lock().unwrap().get(member).cloned();
            let broken = self.broken.lock().unwrap().contains(&member);
            if broken || !state.is_some_and(|it| it.runs()) {
                return Err(Broken::Failed(format!("{member} is away")));
            }
            self.opened.lock().unwrap().push(member.to_owned());
            let (here, mut there) = duplex(1024);
            tokio::spawn(async move {
                let (mut from, mut to) = tokio::io::split(&mut there);
                tokio::io::copy(&mut from, &mut to).await
            });
            Ok(Way {
                stream: here,
                greeting: member.as_bytes().to_vec(),
            })
        }
    }

    fn down() -> PodState {
        PodState::Down("Pending".to_owned())
    }

    /// Who answers at a port, with what was said to it.
    async fn ask(at: SocketAddr) -> String {
        let mut client = TcpStream::connect(at).await.unwrap();
        client.write_all(b" hears").await.unwrap();
        client.shutdown().await.unwrap();
        let mut answer = String::new();
        client.read_to_string(&mut answer).await.unwrap();
        answer
    }

    #[test]
    fn the_member_that_is_meant_is_tried_first_among_those_that_stand_alike() {
        let all = |states: [PodState; 4]| {
            let names = ["a", "b", "c", "d"].map(str::to_owned).into_iter();
            let members = names
                .zip(states)
                .map(|(name, state)| Member { name, state });
            members.collect::<Vec<_>>()
        };
        use PodState::{Leaving, Ready, Running};
        for (states, expect) in [
            ([Ready, Ready, Ready, Ready], "cabd"),
            ([Running, Ready, Leaving, Running], "badc"),
            ([Running, down(), Running, Leaving], "cad"),
            ([down(), down(), down(), down()], ""),
        ] {
            assert_eq!(order("c", all(states)).concat(), expect);
        }
    }

    #[tokio::test]
    async fn each_port_leads_to_its_member_and_to_another_one_while_that_is_away() {
        let fake = Fake::with(&[
            ("a", PodState::Ready),
            ("b", PodState::Ready),
            ("c", down()),
        ]);
        let forwards = Forwards::new(fake);
        let opened = forwards.open(forwards.ways().now()).await.unwrap();
        let at = |name: &str| opened.iter().find(|it| it.0 == name).unwrap().1;
        assert_eq!(ask(at("a")).await, "a hears");
        assert_eq!(ask(at("b")).await, "b hears");
        assert_eq!(ask(at("c")).await, "a hears", "it does not run");
        assert_eq!(
            opened.last().unwrap().0,
            "c",
            "a client begins with who serves"
        );
        // It is deleted, and comes back.
        forwards.ways().states.lock().unwrap().remove("a");
        assert_eq!(ask(at("a")).await, "b hears");
        let back = [("a", PodState::Ready), ("c", PodState::Ready)];
        forwards.ways().states.lock().unwrap().extend(back);
        assert_eq!(ask(at("a")).await, "a hears");
        assert_eq!(ask(at("c")).await, "c hears");
        // Kubernetes does not know yet that nobody is there.
        forwards.ways().broken.lock().unwrap().push("c");
        assert_eq!(ask(at("c")).await, "a hears");
    }

    #[tokio::test]
    async fn the_way_that_was_tried_first_is_used() {
        let forwards = Forwards::new(Fake::with(&[("a", PodState::Ready)]));
        let opened = forwards.open(forwards.ways().now()).await.unwrap();
        assert_eq!(ask(opened[0].1).await, "a hears");
        assert_eq!(*forwards.ways().opened.lock().unwrap(), ["a"]);
    }

    #[tokio::test]
    async fn one_way_is_enough_and_of_none_the_reason_is_told() {
        let states = [("a", PodState::Running), ("b", PodState::Running)];
        let forwards = Forwards::new(Fake::with(&states));
        forwards.ways().broken.lock().unwrap().push("a");
        let opened = forwards.open(forwards.ways().now()).await.unwrap();
        assert_eq!(opened.len(), 2);
        forwards.ways().broken.lock().unwrap().push("b");
        let none = forwards.open(forwards.ways().now()).await.unwrap_err();
        assert!(none.to_string().ends_with("is away"), "{none}");
        let forwards = Forwards::new(Fake {
            forbidden: true,
            ..Fake::with(&states)
        });
        let none = forwards.open(forwards.ways().now()).await.unwrap_err();
        assert_eq!(none.to_string(), "it may not");
    }

    #[tokio::test(start_paused = true)]
    async fn that_nobody_is_reached_any_more_is_remembered_until_somebody_is() {
        let forwards = Forwards::new(Fake::with(&[("a", PodState::Ready)]));
        let opened = forwards.open(forwards.ways().now()).await.unwrap();
        assert_eq!(ask(opened[0].1).await, "a hears");
        assert_eq!(forwards.failure(), None);
        forwards.ways().broken.lock().unwrap().push("a");
        let mut client = TcpStream::connect(opened[0].1).await.unwrap();
        assert_eq!(client.read(&mut [0]).await.unwrap(), 0, "it is closed");
        assert_eq!(forwards.failure().as_deref(), Some("a is away"));
        forwards.ways().broken.lock().unwrap().clear();
        assert_eq!(ask(opened[0].1).await, "a hears");
        assert_eq!(forwards.failure(), None);
    }
}
